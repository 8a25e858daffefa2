"""The real application on a real index, a real store and a real Redis; only workers are missing.

The index is a SQLite file, and for the modules of `ON_BOTH` a Postgres database too.
"""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import redis
from fastapi import FastAPI
from httpx2 import Response
from starlette.testclient import TestClient

from actograph.contract.models import HookInfo, LayerHeads, LocationInfo, ModelStructure
from actograph.contract.resources import SessionFile, TensorInfo
from actograph.contract.row_selection import Segment
from actograph.settings import Settings
from api.app import create_app
from api.dependencies import Services
from api.openai.batches import advance_all
from storage.index.database import Database
from storage.index.ids import new_worker_id
from storage.jobs import jobs
from storage.queue import claim, workers
from storage.queue.leases import LeasedSample
from storage.sessions.manifest import SessionManifest, StoredTensor
from storage.sessions.writer import SessionWriter, TensorRows
from storage.tables.models import JobRow, SampleRow
from storage.upkeep import reaper
from storage.upkeep.reconcile import Reconciler
from tests.support import leasing
from tests.support.command_line import Run, runner
from tests.support.indexes import write_index
from tests.support.samples import result, session_of
from tests.support.servers.application import Application
from worker.drain.pauses import Pauses

#: modules whose tests run on Postgres too
ON_BOTH = {"test_job_lifecycle", "test_event_stream"}
ON_BOTH_IN_SOAK = {
    "test_job_submission", "test_service_state", "test_export_api", "test_sessions_api", "test_uploads",
    "test_batches_api", "test_rescoring", "test_reconciler", "test_replays_api", "test_patch_jobs_api",
}  # fmt: skip

MODEL = "demo"
CONTEXT = 1024
LAYERS = 4
#: a module that is no standard point
UP_PROJ = "model.layers.0.mlp.up_proj.output"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "index_url" in metafunc.fixturenames:
        module = Path(str(metafunc.module.__file__)).stem
        cases: list[Any] = ["sqlite"]
        if module in ON_BOTH | ON_BOTH_IN_SOAK:
            cases.append(pytest.param("postgres", marks=[] if module in ON_BOTH else pytest.mark.soak))
        metafunc.parametrize("index_url", cases, indirect=True)


@pytest.fixture
def index_url(request: pytest.FixtureRequest) -> str:
    """An empty Postgres index; "" for SQLite in the home folder."""
    return str(request.getfixturevalue("postgres_url")) if request.param == "postgres" else ""


@pytest.fixture
def settings(tmp_path: Path, redis_url: str, index_url: str) -> Settings:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)  # an open one is closed, and that is said
    (home / "data").mkdir()
    write_index(home / "actograph.db")
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    return Settings(
        home=home,
        database_url=index_url,
        broker_url=redis_url,
        model=f"{MODEL}=example/demo-model",
        allowed_models=("other=example/other",),
        data_roots=(str(home / "data"),),
        # the thread makes one round at the start; tests ask for the others themselves
        reconcile_seconds=3600,
    )


def structure(model: str = MODEL, **changes: Any) -> ModelStructure:
    """What a worker would report of a small Llama-like model."""
    points = ("resid_pre", "attn_in", "attn_out", "resid_mid", "mlp_in", "mlp_out", "resid_post")
    hooks = {"embed": HookInfo(location="model.embed_tokens.output", width=8, dtype="float32")}
    for layer in range(LAYERS):
        for point in points:
            location = f"model.layers.{layer}.{point}.output"
            hooks[f"{point}.{layer}"] = HookInfo(location=location, width=8, dtype="float32")
    values: dict[str, Any] = {
        "model": model, "architecture": "DemoForCausalLM", "num_layers": LAYERS, "hidden_size": 8,
        "vocab_size": 100, "context_length": CONTEXT, "dtype": "float32", "device": "cpu",
        "num_parameters": 1000, "chat_template": True, "eos_token_ids": [0], "hooks": hooks,
        "module_locations": [*(info.location for info in hooks.values()), UP_PROJ],
        "module_tensors": {
            **{info.location: LocationInfo(width=8, dtype="float32") for info in hooks.values()},
            UP_PROJ: LocationInfo(width=24, dtype="float32"),
        },
        "unavailable": {"router_logits": "the model has no experts"},
    }  # fmt: skip
    return ModelStructure(**values | changes)


@dataclass
class Service:
    """A running application and what stands behind it."""

    client: TestClient
    app: FastAPI

    @property
    def services(self) -> Services:
        services: Services = self.app.state.services
        return services

    @property
    def database(self) -> Database:
        return self.services.database

    def load_model(self, model: str = MODEL, **changes: Any) -> str:
        """A worker that holds the model and is idle; returns its id."""
        worker_id = new_worker_id()
        with self.database.write() as session:
            workers.register(session, worker_id, hostname="here", pid=1, model=model)
            workers.set_ready(session, worker_id, structure(model, **changes))
        return worker_id

    def upload(self, *rows: dict[str, str]) -> str:
        """The id of an uploaded dataset."""
        return self.upload_bytes("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())

    def upload_bytes(self, name: str, body: bytes, **options: Any) -> str:
        """The id of an uploaded file."""
        answer = self.client.post("/v1/files", files={"file": (name, body)}, **options)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def submit(self, **changes: Any) -> str:
        """The id of a capture job."""
        answer = self.client.post("/v1/jobs", json=capture_spec(**changes))
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def messages(self) -> list[bytes]:
        """Every message in the broker."""
        with redis.Redis.from_url(self.services.settings.broker_url) as client:
            keys = [k for k in client.scan_iter("actograph.wake.*") if client.type(k) == b"list"]
            return [m for key in sorted(keys) for m in client.lrange(key, 0, -1)]

    def forget_messages(self) -> None:
        with redis.Redis.from_url(self.services.settings.broker_url) as client:
            client.flushdb()

    def woken(self) -> list[str]:
        """The models of all messages in the broker."""
        bodies = [json.loads(base64.b64decode(json.loads(m)["body"])) for m in self.messages()]
        return sorted(str(body[0][0]) for body in bodies)

    def next_job(self, *models: str) -> str | None:
        """The job that the index has for an idle worker of these models, by default of the demo's."""
        services = self.services
        pauses = Pauses(services.settings, self.database, services.store, new_worker_id())
        if pauses.hold():
            return None
        with self.database.read() as session:
            wanted = tuple(models or (MODEL,))
            owners = pauses.held_owners()
            asking = claim.Asking(
                worker_id="wrk_test", held=claim.HeldModel(wanted[0]), may_load=wanted, owners=owners
            )
            job = claim.choose(session, asking)
        return None if job is None else job.id

    def queue_state(self) -> tuple[int, int, list[bytes]]:
        """Jobs, samples and messages: what a refused request must leave as it is."""
        with self.database.read() as session:
            counts = [session.query(row).count() for row in (JobRow, SampleRow)]
        return counts[0], counts[1], self.messages()

    def reconcile(self) -> None:
        """One round of upkeep, and of the background work."""
        Reconciler(self.services.settings, self.database, self.services.store).round()
        advance_all(self.services)

    def drain(self) -> None:
        """Remove the stored files of what was deleted, as the service does in the background."""
        reaper.reap(self.database, self.services.store)

    def claim(self, job_id: str, count: int = 1) -> list[LeasedSample]:
        """Samples as a worker takes them."""
        with self.database.write() as session:
            jobs.start(session, job_id)
            return leasing.claim(session, job_id, worker_id="wrk_test", count=count)

    def finish(
        self,
        lease: LeasedSample,
        *,
        tensors: dict[str, TensorRows] | None = None,
        correct: bool | None = None,
        scores: dict[str, Any] | None = None,
        completion: str = "a completion",
        token_ids: range | list[int] = range(100, 107),
        attention: dict[int, LayerHeads] | None = None,
        latents: int | None = None,
        finish_reason: str = "stop",
        token_texts: list[str] | None = None,
    ) -> str | None:
        """Complete a sample as a worker does: session files, session row, sample, counters, end.

        `latents`: of the SAE whose latents the tensors named `sae:` are.
        """

        session_id = None if tensors is None else lease.session_id
        assert tensors is None or session_id is not None, "the job captures nothing"
        done = result(
            prompt="a prompt", completion=completion, finish_reason=finish_reason, prompt_tokens=3,
            generated_tokens=len(token_ids) - 3, scores=scores or {}, session_id=session_id,
        )  # fmt: skip
        made = None
        if session_id is not None and tensors is not None:
            files, infos = self._write_session(
                session_id,
                lease,
                tensors,
                token_ids,
                attention=attention or {},
                latents=latents,
                token_texts=token_texts or [],
            )
            made = session_of(
                lease, condition=lease.condition, epoch=lease.epoch, prompt_tokens=3,
                generated_tokens=len(token_ids) - 3, rows=len(token_ids) - 1,
                hooks=infos, files=files, correct=correct,
            )  # fmt: skip
        with self.database.write() as session:
            leasing.complete(session, lease, done, made)
        return session_id

    def _write_session(
        self,
        session_id: str,
        lease: LeasedSample,
        tensors: dict[str, TensorRows],
        token_ids: range | list[int],
        *,
        attention: dict[int, LayerHeads],
        latents: int | None,
        token_texts: list[str],
    ) -> tuple[list[SessionFile], dict[str, TensorInfo]]:
        chosen = [rows for rows in tensors.values() if rows.tokens is not None]
        counts = accumulate((len(rows.tokens or ()) for rows in chosen), initial=0)
        offsets = {rows.name: offset for rows, offset in zip(chosen, counts, strict=False)}
        manifest = SessionManifest(
            attention=attention, token_texts=token_texts,
            session_id=session_id, job_id=lease.job_id, sample_id=lease.id, model=MODEL, capture={},
            sample_index=lease.sample_index, capture_sha256="0" * 64, dtype="model", seed=lease.seed,
            prompt_tokens=3, generated_tokens=len(token_ids) - 3, created_at=0,
            segments=[
                Segment(name="prompt", start=0, stop=3),
                Segment(name="answer", start=3, stop=len(token_ids)),
            ],
            tensors={
                name: StoredTensor(
                    shape=rows.shape,
                    dtype=rows.dtype,
                    first_row=rows.first_row,
                    position_offset=offsets.get(rows.name),
                    latents=latents if name.startswith("sae:") else None,
                )
                for name, rows in tensors.items()
            },
        )  # fmt: skip
        with SessionWriter(self.services.store, session_id) as writer:
            writer.write_shard(list(tensors.values()))
            positions = [token for rows in chosen for token in rows.tokens or ()]
            files = writer.finish(manifest, token_ids, positions or None)
            assert writer.manifest is not None
            infos = {
                name: TensorInfo(**t.model_dump(exclude={"parts"}))
                for name, t in writer.manifest.tensors.items()
            }
        return files, infos


#: the rows of a small session
EMBED = {"embed": TensorRows("embed", "F32", (6, 8), 0, bytes(6 * 8 * 4))}


def capture_spec(**changes: Any) -> dict[str, Any]:
    return {"kind": "capture", "model": MODEL, "inputs": [{"prompt": "Hello"}]} | changes


class StoreWithDisk:
    """The real store, on a disk that has as much free as a test says."""

    def __init__(self, store: Any, free: int | None) -> None:
        self._store = store
        self.free = free

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def free_bytes(self) -> int | None:
        return self.free


Start = Callable[[Settings], Service]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts applications, as many as a test needs."""
    opened: list[TestClient] = []

    def start_one(settings: Settings) -> Service:
        app = create_app(settings)
        client = TestClient(
            app,
            base_url="http://127.0.0.1:8420",
            client=("127.0.0.1", 50000),
            raise_server_exceptions=False,
            follow_redirects=False,
        )
        client.__enter__()
        opened.append(client)
        return Service(client, app)

    yield start_one
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture
def service(start: Start, settings: Settings) -> Service:
    return start(settings)


ROOT_KEY = "root-key"


@dataclass
class Keyed(Service):
    """A service with keys, one of them an admin's that the settings name."""

    def headers(self, key: str = ROOT_KEY) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def make_key(self, role: str, **fields: Any) -> str:
        """A new key."""
        body = {"name": "a key", "role": role} | fields
        answer = self.client.post("/v1/keys", json=body, headers=self.headers())
        assert answer.status_code == 201, answer.text
        return str(answer.json()["key"])


@pytest.fixture
def keyed(start: Start, settings: Settings) -> Keyed:
    service = start(settings.model_copy(update={"api_keys": (ROOT_KEY,)}))
    return Keyed(service.client, service.app)


Problem = Callable[..., dict[str, Any]]


@pytest.fixture
def problem() -> Problem:
    """Asserts the one shape that every error answer has; returns the body."""

    def check(
        answer: Response,
        status: int,
        code: str | None = None,
        pointer: str | None = None,
        *,
        says: str = "",
    ) -> dict[str, Any]:
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        body: dict[str, Any] = answer.json()
        assert set(body) == {"type", "title", "status", "detail", "instance", "errors", "error"}
        assert body["status"] == status
        assert body["instance"] == answer.request.url.path
        assert body["detail"]
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["message"] == body["detail"]
        assert body["error"]["type"].endswith("_error")
        assert all(set(item) == {"detail", "pointer"} for item in body["errors"])
        if code is not None:
            assert body["error"]["code"] == code
        if pointer is not None:
            assert pointer in [item["pointer"] for item in body["errors"]], body["errors"]
            assert body["error"]["param"]
        assert says in answer.text
        return body

    return check


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    """The application on a socket; it was started already."""
    served = Application(service.app)
    yield served.url
    served.stop()


@pytest.fixture
def run(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("ACTOGRAPH_URL", url)
    monkeypatch.setenv("TERM", "dumb")
    return runner(capsys)
