"""A job is run with the model that it is pinned to, whatever clients load and whoever overwrites files."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actograph.contract import resources
from actograph.contract.job_specs import job_spec_adapter
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.models import ModelStructure, parse_served
from actograph.contract.resources import JobStatus
from actograph.settings import Settings
from storage.artifacts.factory import open_store
from storage.index import events
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.queue import model_loads, workers
from storage.sessions import sessions
from storage.sessions.manifest import SessionManifest
from storage.sessions.writer import SessionReader
from storage.tables.models import JobRow, SessionRow
from tests.support.indexes import create_index
from tests.support.submitting import insert
from worker.drain.drain import Drain
from worker.drain.model_holder import ModelHolder
from worker.engine.loading import load_engine
from worker.engine.messages import RunOptions
from worker.signals.stop_signal import StopSignal

pytestmark = pytest.mark.integration

MODEL = "tiny"
FIRST, SECOND = (
    [{"name": "late", "selector": f"model.layers[{layer}].mlp.output"}, {"name": "same", "selector": "embed"}]
    for layer in (0, 1)
)


class Worker:
    """A worker in this process whose batches have two samples."""

    def __init__(self, bench: "Bench", number: int) -> None:
        self._bench, self.id = bench, f"wrk_{number:032x}"
        self.loads: list[str] = []
        with bench.database.write() as session:
            workers.register(session, self.id, hostname="here", pid=number + 1, model=MODEL)
        self.holder = ModelHolder(bench.settings, self._loaded, bench.options_of)
        self.drain = Drain(
            settings=bench.settings,
            database=bench.database,
            store=bench.store,
            models=self.holder,
            worker_id=self.id,
            stop=StopSignal(),
        )
        self.drain.load(MODEL)

    def _loaded(self, structure: ModelStructure) -> None:
        self.loads.append(structure.dtype)
        with self._bench.database.write() as session:
            model_loads.loaded(session, self.id, structure, self.holder.options)

    def load(self, **options: Any) -> None:
        """Load the model as a client asks."""
        with self._bench.database.write() as session:
            row = model_loads.create(session, MODEL, ModelLoadOptions.model_validate(options))
        self.drain.look(1)
        assert self._bench.job(row.id).status == JobStatus.COMPLETED, self._bench.job(row.id).error


class Bench:
    def __init__(self, home: Path, shared: Path) -> None:
        self.folder = home / "model"
        shutil.copytree(shared / "models" / "tiny-qwen3", self.folder)
        for path in [self.folder, *self.folder.iterdir()]:
            path.chmod(0o755)
        self.settings = Settings(
            home=home, model=f"{MODEL}={self.folder}", device="cpu", dtype="float32", slots=2,
            model_hold_seconds=600,
        )  # fmt: skip
        self.database = Database(self.settings.effective_database_url)
        create_index(self.database)
        self.store = open_store(self.settings.effective_artifact_url)
        self.workers: list[Worker] = []

    def worker(self) -> Worker:
        (self.settings.home / f"wrk_{len(self.workers):032x}").mkdir()
        self.workers.append(Worker(self, len(self.workers)))
        return self.workers[-1]

    def options_of(self, model: str) -> ModelLoadOptions:
        with self.database.read() as session:
            return model_loads.options_in_force(session, model)

    def submit(self, *, hooks: list[str], is_pinned: bool = True, count: int = 8, priority: int = 5) -> str:
        """A capture job whose samples differ in their prompts, as the API inserts it."""
        body = {
            "kind": "capture",
            "model": MODEL,
            "inputs": [{"prompt": f"{n} and {n + 1}"} for n in range(count)],
            "capture": {"hooks": hooks, "dtype": "model"},
            "sampling": {"max_tokens": 2},
            "priority": priority,
        }
        spec: Any = job_spec_adapter.validate_python(body)
        with self.database.write() as session:
            known = workers.structure(session, MODEL)
            pinned = jobs.pin_to(known) if is_pinned else None
        return insert(self.database, spec, pinned=pinned)

    def finish(self, worker: Worker, job_id: str) -> resources.JobStatus:
        for _ in range(20):
            worker.drain.look()
            if JobStatus(self.job(job_id).status).is_terminal():
                break
        return JobStatus(self.job(job_id).status)

    def job(self, job_id: str) -> JobRow:
        with self.database.read() as session:
            return jobs.get(session, job_id)

    def sessions(self, job_id: str) -> list[SessionRow]:
        with self.database.read() as session:
            found, _ = sessions.find(session, sessions.SessionFilter(job_id=job_id), limit=100)
            return list(found)

    def manifests(self, job_id: str) -> list[SessionManifest]:
        return [SessionReader(self.store, row.id).manifest for row in self.sessions(job_id)]

    def log(self, job_id: str) -> list[resources.Event]:
        with self.database.read() as session:
            return events.after(session, job_id, 0)

    def overwrite(self) -> None:
        """Other weights under the old name, of the same size."""
        path = self.folder / "model.safetensors"
        tensors = load_file(path)
        changed = dict(tensors)
        name = min(tensors)
        changed[name] = tensors[name].clone()
        changed[name].view(-1)[-1] += 0.5  # one number
        save_file(changed, path, metadata={"format": "pt"})


@pytest.fixture
def bench(tmp_path: Path, shared: Path) -> Iterator[Bench]:
    torch.set_num_threads(1)
    made = Bench(tmp_path, shared)
    yield made
    for worker in made.workers:
        worker.holder.close()
    made.database.close()


@pytest.mark.parametrize(
    ("is_pinned", "reload"),
    [(True, {"savepoints": SECOND}), (False, {})],
    ids=["pinned-at-submit", "pinned-at-first-claim"],
)
def test_a_savepoint_means_what_it_meant_before_a_reload(
    bench: Bench, is_pinned: bool, reload: dict[str, Any]
) -> None:
    worker = bench.worker()
    worker.load(savepoints=FIRST)
    job_id = bench.submit(hooks=["late", "same", "resid_post.1"], is_pinned=is_pinned)
    worker.drain.look(1)
    assert len(bench.sessions(job_id)) == 2
    worker.load(**reload)
    assert bench.finish(worker, job_id) is JobStatus.COMPLETED
    found = bench.manifests(job_id)
    assert len(found) == 8
    assert {tuple(m.tensors) for m in found} == {("embed", "mlp_out.0", "resid_post.1")}
    resolved = {"late": "mlp_out.0", "same": "embed", "resid_post.1": "resid_post.1"}
    assert [m.resolved_hooks for m in found] == [resolved] * 8
    assert {m.identity_sha256 for m in found} == {bench.job(job_id).identity_sha256}
    assert {row.identity_sha256 for row in bench.sessions(job_id)} == {bench.job(job_id).identity_sha256}
    assert len(worker.loads) == 3, "the same numbers need no load of their own"


@pytest.mark.parametrize(
    "options", [{"dtype": "bfloat16"}, {"attn_implementation": "eager"}], ids=["dtype", "attention"]
)
def test_a_running_job_keeps_the_variant_that_it_began_with(bench: Bench, options: dict[str, str]) -> None:
    worker = bench.worker()
    job_id = bench.submit(hooks=["resid_post.0"])
    worker.drain.look(1)
    worker.load(**options)
    later = bench.submit(hooks=["resid_post.0"])
    assert bench.finish(worker, job_id) is JobStatus.COMPLETED
    engine = worker.holder.engine
    assert engine is not None and engine.structure.identity is not None
    assert (engine.structure.dtype, engine.structure.identity.attn_implementation) == ("float32", "sdpa")
    assert bench.finish(worker, later) is JobStatus.COMPLETED
    dtypes = [{m.tensors["resid_post.0"].dtype for m in bench.manifests(i)} for i in (job_id, later)]
    assert dtypes == [{"F32"}, {"BF16"} if "dtype" in options else {"F32"}]
    identities = [{row.identity_sha256 for row in bench.sessions(i)} for i in (job_id, later)]
    assert identities == [{bench.job(job_id).identity_sha256}, {bench.job(later).identity_sha256}]
    assert identities[0] != identities[1]
    (field,) = options
    (said,) = [event for event in bench.log(job_id) if event.event == "model.reloaded"]
    assert field in said.data["differences"]
    assert "model.reloaded" not in [event.event for event in bench.log(later)]


def test_two_variants_are_loaded_once_each_not_in_turns(bench: Bench) -> None:
    worker = bench.worker()
    old = bench.submit(hooks=["resid_post.0"])
    worker.load(dtype="bfloat16")
    new = bench.submit(hooks=["resid_post.0"])
    worker.drain.look()
    assert [bench.job(i).status for i in (old, new)] == [JobStatus.COMPLETED] * 2
    assert worker.loads == ["float32", "bfloat16", "float32"]


def test_weights_that_were_overwritten_fail_the_job_with_both_fingerprints(bench: Bench) -> None:
    worker = bench.worker()
    job_id = bench.submit(hooks=["resid_post.1"])
    worker.drain.look(1)
    bench.overwrite()
    worker.drain.look(1)
    assert len(bench.sessions(job_id)) == 4, "the model in memory is still the one"
    worker.load()
    assert bench.finish(worker, job_id) is JobStatus.FAILED
    row, new = bench.job(job_id), bench.job(bench.submit(hooks=["resid_post.1"]))
    assert row.error is not None
    assert row.error["type"] == "model_changed"
    for one in (row, new):
        assert one.pinned is not None
        assert one.identity_sha256 in row.error["message"]
        assert one.pinned["identity"]["weights_sha256"][:12] in row.error["message"]
    assert {s.identity_sha256 for s in bench.sessions(job_id)} == {row.identity_sha256}
    assert worker.loads == ["float32"] * 2, "the overwritten files are seen before the model is unloaded"
    assert bench.finish(worker, new.id) is JobStatus.COMPLETED


def test_a_file_that_is_overwritten_in_place_does_not_change_the_model_in_memory(bench: Bench) -> None:
    engine = load_engine(parse_served(f"{MODEL}={bench.folder}"), ModelLoadOptions(), RunOptions())
    before = {name: tensor.clone() for name, tensor in engine.model.hf.state_dict().items()}
    path = bench.folder / "model.safetensors"
    header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    with path.open("r+b") as file:
        file.seek(header)
        file.write(bytes(path.stat().st_size - header))
    after = engine.model.hf.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_the_job_goes_on_once_the_former_weights_are_back(bench: Bench) -> None:
    worker = bench.worker()
    path = bench.folder / "model.safetensors"
    former = path.read_bytes()
    job_id = bench.submit(hooks=["resid_post.1"])
    worker.drain.look(1)
    bench.overwrite()
    worker.load()
    assert bench.finish(worker, job_id) is JobStatus.FAILED
    path.write_bytes(former)
    with bench.database.write() as session:
        control.retry(session, job_id)
    assert bench.finish(worker, job_id) is JobStatus.COMPLETED
    assert Counter(s.identity_sha256 for s in bench.sessions(job_id)) == {
        bench.job(job_id).identity_sha256: 8
    }


def test_of_two_workers_the_first_claim_decides(bench: Bench) -> None:
    first, second = bench.worker(), bench.worker()
    job_id = bench.submit(hooks=["resid_post.0"], is_pinned=False)
    second.load(dtype="bfloat16")
    for worker in (first, second, first, second):
        worker.drain.look(1)
    assert bench.job(job_id).status == JobStatus.COMPLETED
    assert [m.identity_sha256 for m in bench.manifests(job_id)] == [bench.job(job_id).identity_sha256] * 8


def test_a_job_whose_weights_are_gone_is_left_to_the_worker_that_has_them(bench: Bench) -> None:
    first, second = bench.worker(), bench.worker()
    job_id = bench.submit(hooks=["resid_post.1"])
    bench.overwrite()
    second.load()
    second.drain.look(1)
    assert bench.job(job_id).status == JobStatus.IN_PROGRESS
    assert bench.sessions(job_id) == []
    assert second.loads == ["float32"] * 2
    assert bench.finish(first, job_id) is JobStatus.COMPLETED
    assert {s.identity_sha256 for s in bench.sessions(job_id)} == {bench.job(job_id).identity_sha256}
    # and fails once nobody has them
    last = bench.submit(hooks=["resid_post.1"])
    with bench.database.write() as session:
        pinned = bench.job(job_id)
        row = session.get_one(JobRow, last)
        row.pinned, row.identity_sha256 = pinned.pinned, pinned.identity_sha256
        workers.set_offline(session, first.id)
    assert bench.finish(second, last) is JobStatus.FAILED
