"""Acts of clients, all at once: every request that writes to the index, on the same few items."""

import json
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from fastapi import BackgroundTasks, UploadFile
from starlette.responses import JSONResponse

from actograph.contract.errors import NotFound
from actograph.contract.interventions import NewVector
from actograph.contract.job_specs import job_spec_adapter
from actograph.contract.model_loads import ModelLoadRequest
from actograph.contract.openai import ChatCompletionRequest
from actograph.contract.openai_answers import BatchRequest
from actograph.contract.operations import KeyUpdate, NewKey
from actograph.contract.roles import Role
from actograph.contract.specs import SessionUpdate
from actograph.contract.tasks import RescoreRequest
from api.dependencies import Services
from api.routes import batches, files, jobs, models
from api.routes import vectors as vector_routes
from api.submit import submit
from storage.accounts import api_keys
from storage.index.pages import PageOptions
from storage.jobs import jobs as stored_jobs
from storage.jobs import uses
from storage.queue import pause
from storage.results import rescoring
from storage.sessions import changes, sessions
from storage.sessions.filter import SessionFilter
from storage.tables.models import JobRow
from tests.support.races.world import HOOK, MODEL, WIDTH, World

T = TypeVar("T")
EVALUATION_ROWS = 2


@dataclass
class Memory:
    """Ids known to all clients; old ones stay, so that some requests fail."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    ids: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    #: Idempotency-Key -> the jobs that were answered to it
    answered: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: jobs that were accepted, and those whose deletion was answered
    accepted: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)


class Client:
    """One thread's client; its choices come of its seed."""

    def __init__(self, world: World, memory: Memory, number: int) -> None:
        self._world = world
        self._memory = memory
        self._number = number
        self._random = random.Random(world.seed * 1000 + number)
        #: what is done comes of the seed alone, whatever is found when it is done
        self._choice = random.Random(world.seed * 1000 + number)
        self._services: Services = world.apis[number % len(world.apis)]
        self._acts: list[tuple[Callable[[], object], int]] = [
            (self.submit, 10), (self.submit_once, 6), (self.evaluate, 4), (self.chat, 3), (self.steer, 2),
            (self.cancel, 4), (self.delete_job, 5), (self.retry, 4), (self.rescore, 3),
            (self.pause, 1), (self.resume, 3), (self.load_model, 1),
            (self.delete_session, 4), (self.delete_sessions, 2), (self.change_session, 3),
            (self.change_sessions, 2),
            (self.upload, 2), (self.delete_file, 2), (self.store_vector, 2), (self.delete_vector, 2),
            (self.create_batch, 2), (self.cancel_batch, 2),
            (self.create_key, 1), (self.revoke_key, 2), (self.update_key, 1), (self.touch_keys, 2),
            (self.look, 3),
        ]  # fmt: skip

    def act(self) -> None:
        """One random request."""
        acts, weights = zip(*self._acts, strict=True)
        chosen = self._choice.choices(acts, weights)[0]
        with self._world.faults.guard(chosen.__name__):
            chosen()

    def prepare(self) -> None:
        """So that the first requests have something to name."""
        for make in (self.create_key, self.upload, self.store_vector):
            make()

    # jobs

    def submit(self, key: str | None = None, **changes: Any) -> None:
        count = self._random.randint(1, 5)
        spec: dict[str, Any] = {
            "kind": "capture",
            "model": MODEL,
            "inputs": [{"prompt": f"{i} and {self._number}"} for i in range(count)],
            "capture": {"hooks": [HOOK]} if self._random.random() < 0.8 else None,
            "sampling": {"max_tokens": 4},
            "tags": [f"t{self._random.randint(0, 2)}", *([f"key-{key}"] if key else [])],
            "priority": self._random.choice([0, 5, 5, 5]),
        }
        if self._random.random() < 0.3:
            spec["expires_after"] = {"seconds": 3600}
        self._submit(spec | changes, key)

    def submit_once(self) -> None:
        """The same request under one of a few keys, by whoever comes."""
        key = str(self._random.randint(0, 30))
        self._submit(
            {
                "kind": "capture",
                "model": MODEL,
                "inputs": [{"prompt": "once"}],
                "capture": {"hooks": [HOOK]},
                "tags": [f"key-{key}"],
            },
            key,
        )

    def evaluate(self) -> None:
        file_id = self._any("dataset")
        self._submit({"kind": "evaluation", "model": MODEL, "task": "gsm8k", "dataset": {"file_id": file_id},
                      "sampling": {"max_tokens": 4}, "capture": {"hooks": [HOOK]}})  # fmt: skip

    def steer(self) -> None:
        vector = {"hook": HOOK, "op": "add", "vector_id": self._any("vector"), "coefficient": 1.0}
        self.submit(interventions=[vector])

    def chat(self) -> None:
        request = ChatCompletionRequest.model_validate(
            {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        )
        row = submit(self._services, request, "me", starts_now=True)
        self._keep("job", row.id)  # chats are forgotten after a while

    def cancel(self) -> None:
        jobs.cancel_job(self._services, self._any("job"))

    def delete_job(self) -> None:
        job_id = self._any("job")
        jobs.delete_job(self._services, job_id, include_pinned=self._random.random() < 0.5)
        self._memory.deleted.add(job_id)

    def retry(self) -> None:
        job_id = self._any("job")
        with self._services.database.read() as session:
            # an ended job holds neither file nor vector
            if stored_jobs.get(session, job_id).kind != "capture":
                return
        jobs.retry_job(self._services, job_id)

    def rescore(self) -> None:
        scorers = RescoreRequest.model_validate({"scorers": ["numeric"]}).scorers
        rescoring.rescore(self._services.database, self._any("evaluation"), scorers)

    def load_model(self) -> None:
        models.begin_load(self._services, ModelLoadRequest(model_id=MODEL))

    def pause(self) -> None:
        with self._services.database.write() as session:
            pause.start(session, by="me", reason=None)

    def resume(self) -> None:
        with self._services.database.write() as session:
            pause.end(session)

    # sessions

    def delete_session(self) -> None:
        with self._services.database.write() as session:
            changes.delete(session, self._any_session())

    def delete_sessions(self) -> None:
        wanted = SessionFilter(tag=f"t{self._random.randint(0, 2)}")
        services, pinned = self._services, self._random.random() < 0.5
        changes.delete_matching(services.database, wanted, include_pinned=pinned)

    def change_session(self) -> None:
        with self._services.database.write() as session:
            changes.update(session, [self._any_session()], self._change())

    def change_sessions(self) -> None:
        wanted = SessionFilter(tag=f"t{self._random.randint(0, 2)}")
        changes.update_matching(self._services.database, wanted, self._change())

    def _change(self) -> SessionUpdate:
        return SessionUpdate.model_validate(
            self._random.choice(
                [{"pinned": True}, {"pinned": False}, {"expires_at": 1}, {"tags": ["t0", "t1"]},
                 {"tags": ["t2"], "expires_at": None}]
            )
        )  # fmt: skip

    def _any_session(self) -> str:
        with self._services.database.read() as session:
            found = sessions.find(session, SessionFilter(), limit=20)[0]
        if not found:
            raise NotFound("no session yet")
        return self._random.choice([row.id for row in found])

    # files, vectors, batches, keys

    def upload(self) -> None:
        if self._random.random() < 0.5:
            rows = [{"question": f"{i}?", "answer": f"#### {i}"} for i in range(EVALUATION_ROWS)]
            self._upload("dataset", rows)
            return
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
        self._upload("batch", [line | {"custom_id": f"c{i}"} for i in range(2)])

    def _upload(self, purpose: str, rows: list[dict[str, Any]]) -> None:
        text = "\n".join(map(json.dumps, rows)).encode()
        upload = UploadFile(BytesIO(text), filename="rows.jsonl", size=len(text))
        fields = files.UploadFields(purpose=purpose)
        self._keep(purpose, files.store_upload(self._services, "me", upload, fields).id)

    def delete_file(self) -> None:
        file_id = self._any(self._random.choice(["dataset", "batch"]))
        files.delete_file(self._services, file_id)
        with self._services.database.read() as session:
            reader = sa.select(JobRow.id).where(
                JobRow.status.in_(stored_jobs.ACTIVE),
                JobRow.spec["dataset"]["file_id"].as_string() == file_id,
            )
            found = session.scalars(reader).all()
        if found:
            self._world.faults.note(f"{file_id} is gone, and active jobs read it: {found}")

    def store_vector(self) -> None:
        new = NewVector(name="v", hook=HOOK, model=MODEL, vector=[1.0] * WIDTH)
        self._keep("vector", vector_routes.store_vector(self._services, new, "me").id)

    def delete_vector(self) -> None:
        vector_id = self._any("vector")
        vector_routes.delete_vector(self._services, vector_id)
        with self._services.database.read() as session:
            user = uses.user_of(session, vector_id)
        if user is not None:
            self._world.faults.note(f"{vector_id} is gone, and the active job {user} uses it")

    def create_batch(self) -> None:
        request = {"input_file_id": self._any("batch"), "endpoint": "/v1/chat/completions",
                   "completion_window": "24h"}  # fmt: skip
        asked = BatchRequest.model_validate(request)
        self._keep("batches", batches.create_batch(self._services, BackgroundTasks(), asked, "me").id)

    def cancel_batch(self) -> None:
        batches.cancel_batch(self._services, self._any("batches"), BackgroundTasks())

    def create_key(self) -> None:
        with self._services.database.write() as session:
            row, _ = api_keys.create(session, NewKey(name="k", role=Role.ADMIN, owner="me"))
        self._keep("key", row.id)

    def revoke_key(self) -> None:
        with self._services.database.write() as session:
            api_keys.revoke(session, self._any("key"))

    def update_key(self) -> None:
        with self._services.database.write() as session:
            api_keys.update(session, self._any("key"), KeyUpdate(name="other"))

    def touch_keys(self) -> None:
        with self._services.database.read() as session:
            row = api_keys.get(session, self._any("key"))
        api_keys.touch(self._services.database, row)

    def look(self) -> None:
        """Reads meet what is being written."""
        page = PageOptions(limit=20, after=None, order="desc")
        jobs.list_jobs(self._services, page)
        batches.list_batches(self._services, page)
        with self._services.database.read() as session:
            rows, _ = sessions.find(session, SessionFilter(), limit=20)
            sessions.resources_of(session, rows)

    # what is known

    def _submit(self, spec: dict[str, Any], key: str | None = None) -> None:
        answer: JSONResponse = jobs.submit_job(
            self._services, job_spec_adapter.validate_python(spec), "me", key
        )
        job_id = cast(str, json.loads(bytes(answer.body))["id"])
        self._accept(job_id)
        if key is not None:
            with self._memory.lock:
                self._memory.answered[key].add(job_id)
        if spec["kind"] == "evaluation":
            self._keep("evaluation", job_id)

    def _accept(self, job_id: str) -> None:
        self._memory.accepted.add(job_id)
        self._keep("job", job_id)

    def _keep(self, kind: str, made: str) -> None:
        with self._memory.lock:
            self._memory.ids[kind].append(made)

    def _any(self, kind: str) -> str:
        """One of the newest of a kind."""
        with self._memory.lock:
            found = self._memory.ids[kind][-12:]
        if not found:
            raise NotFound(f"no {kind} yet")
        return self._random.choice(found)
