"""A real HTTP server that speaks the contract from memory, and fails on request."""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from email import message_from_bytes
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest
import typer
from pydantic import BaseModel, ValidationError

from actograph.contract import base, operations, resources
from actograph.contract.job_specs import job_spec_adapter
from actograph.contract.models import Model, ModelStructure
from actograph.contract.resources import JobComparison, TextComparison
from tests.support.tensor_files import encode_tensors

CREATED_AT = 1_700_000_000


class Refused(Exception):
    def __init__(self, status: int, code: str, detail: str, pointer: str | None = None) -> None:
        self.status = status
        items = [base.ProblemItem(detail=detail, pointer=pointer)] if pointer else []
        self.problem = base.Problem(
            title="refused",
            status=status,
            detail=detail,
            errors=items,
            error=base.OpenAIError(message=detail, type="invalid_request_error", code=code),
        )


class HangUp(Exception):
    """Close the connection in place of an answer."""


@dataclass
class Seen:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class ContractServer:
    """State that tests set up and look at; `url` is where it listens."""

    url: str = ""
    api_key: str = ""
    jobs: dict[str, resources.Job] = field(default_factory=dict)
    samples: dict[str, list[resources.Sample]] = field(default_factory=dict)
    results: dict[str, resources.JobResults] = field(default_factory=dict)
    events: dict[str, list[resources.Event]] = field(default_factory=dict)
    sessions: dict[str, resources.Session] = field(default_factory=dict)
    tensors: dict[tuple[str, str], tuple[str, np.ndarray[Any, Any]]] = field(default_factory=dict)
    manifests: dict[str, BaseModel] = field(default_factory=dict)
    stored: dict[tuple[str, str], bytes] = field(default_factory=dict)
    uploads: dict[str, tuple[str, str, bytes]] = field(default_factory=dict)
    models: list[Model] = field(default_factory=list)
    workers: list[operations.Worker] = field(default_factory=list)
    pauses: list[operations.QueuePause] = field(default_factory=list)
    structure: ModelStructure | None = None
    estimate: operations.Estimate | None = None
    comparison: JobComparison | None = None
    text_comparison: TextComparison | None = None
    #: what a request to load a model answers and then shows, the last one for ever
    model_loads: list[resources.ModelLoad] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    #: what the next requests meet, each used once: a status, "drop" (unserved), "lose" (served, not
    #: answered) or "in_flight" (the same Idempotency-Key is in use)
    faults: list[int | str] = field(default_factory=list)
    #: an event stream breaks off after so many messages; each used once
    stream_cuts: list[int] = field(default_factory=list)
    #: a download breaks off after so many bytes; each used once
    download_cuts: list[int] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)

    def add_job(self, number: int, *, status: str = "completed", **changes: Any) -> resources.Job:
        identifier = f"job_{number:032x}"
        values: dict[str, Any] = {
            "id": identifier,
            "kind": "evaluation",
            "status": status,
            "model": "demo",
            "created_at": CREATED_AT + number,
            "progress": {"total": 4, "completed": 4 if status == "completed" else 0, "failed": 0},
            "priority": 5,
            "spec": {"kind": "evaluation", "model": "demo", "num_fewshot": 5},
            "results_url": f"/v1/jobs/{identifier}/results",
        }
        job = resources.Job.model_validate(values | changes)
        self.jobs[job.id] = job
        return job

    def add_session(self, number: int, files: dict[str, bytes] | None = None) -> resources.Session:
        identifier = f"ses_{number:032x}"
        contents = (
            {"activations.safetensors": b"tensors" * 100, "manifest.json": b"{}"} if files is None else files
        )
        for name, data in contents.items():
            self.stored[identifier, name] = data
        session = resources.Session(
            id=identifier,
            job_id=f"job_{1:032x}",
            sample_id=f"smp_{number:032x}",
            sample_index=number,
            condition="baseline",
            model="demo",
            created_at=CREATED_AT + number,
            prompt_tokens=5,
            generated_tokens=3,
            rows=7,
            bytes=sum(map(len, contents.values())),
            dtype="F32",
            hooks={"resid_post.1": resources.TensorInfo(shape=(7, 4), dtype="F32", nbytes=112)},
            files=[
                resources.SessionFile(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
                for name, data in contents.items()
            ],
            correct=number % 2 == 0,
        )
        self.sessions[identifier] = session
        return session

    def add_events(self, job_id: str, *named: tuple[str, dict[str, Any]]) -> None:
        log = self.events.setdefault(job_id, [])
        for name, data in named:
            number = len(log) + 1
            at = float(CREATED_AT + number)
            log.append(resources.Event(id=number, job_id=job_id, event=name, created_at=at, data=data))

    def paths(self, method: str = "GET") -> list[str]:
        return [seen.path for seen in self.seen if seen.method == method]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: ContractServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        state = self.state
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(self.command, parts.path, query, headers, body)
        state.seen.append(seen)
        fault = state.faults.pop(0) if state.faults else None
        try:
            if fault == "drop":
                raise HangUp
            if fault == "in_flight":
                raise Refused(409, "idempotency_in_flight", "the first request is in progress")
            if isinstance(fault, int):
                self._send(fault, b"<html>busy</html>", "text/html")
                return
            if state.api_key and headers.get("authorization") != f"Bearer {state.api_key}":
                raise Refused(
                    401, "unauthorized", "A valid API key is required, in the header Authorization: Bearer."
                )
            for method, pattern, act in ROUTES:
                if method == self.command and (match := re.fullmatch(pattern, parts.path)):
                    answer = act(self, seen, *map(unquote, match.groups()))
                    if fault == "lose":
                        raise HangUp
                    if answer is not None:
                        self._send(200, answer.model_dump_json().encode(), "application/json")
                    return
            raise Refused(404, "not_found", "there is nothing at this address")
        except Refused as error:
            problem = error.problem.model_dump_json().encode()
            self._send(error.status, problem, "application/problem+json")
        except HangUp:
            self.close_connection = True

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_DELETE = do_GET  # noqa: N815

    # routes

    def list_jobs(self, seen: Seen) -> BaseModel:
        found = [
            job for job in self.state.jobs.values() if seen.query.get("status") in (None, str(job.status))
        ]
        return page(sorted(found, key=lambda job: -job.created_at), seen.query)

    def submit(self, seen: Seen) -> BaseModel:
        state, key = self.state, self.headers["Idempotency-Key"]
        if key in state.keys:
            return state.jobs[state.keys[key]]
        try:
            spec = job_spec_adapter.validate_json(seen.body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            pointer = "/" + "/".join(map(str, first["loc"][1:]))
            raise Refused(422, "invalid_request", first["msg"], pointer) from error
        dumped = spec.model_dump(mode="json")
        job = state.add_job(len(state.jobs) + 1, status="queued", spec=dumped, kind=spec.kind)
        state.keys[key] = job.id
        return job

    def estimate(self, seen: Seen) -> BaseModel:
        job_spec_adapter.validate_json(seen.body)
        assert self.state.estimate is not None
        return self.state.estimate

    def delete_file(self, _: Seen, file_id: str) -> BaseModel:
        del self.state.uploads[file_id]
        return base.Deleted(id=file_id, object="file")

    def cancel(self, _: Seen, job_id: str) -> BaseModel:
        job = self._job(job_id)
        if job.status == "completed":
            raise Refused(409, "conflict", f"job {job_id} is completed already")
        self.state.jobs[job_id] = job.model_copy(update={"status": resources.JobStatus.CANCELLED})
        return self.state.jobs[job_id]

    def retry(self, _: Seen, job_id: str) -> BaseModel:
        job = self._job(job_id)
        if job.status not in ("failed", "cancelled"):
            raise Refused(409, "conflict", f"job {job_id} is {job.status}; there is nothing to retry")
        self.state.jobs[job_id] = job.model_copy(update={"status": resources.JobStatus.QUEUED})
        return self.state.jobs[job_id]

    def delete_job(self, _: Seen, job_id: str) -> BaseModel:
        del self.state.jobs[self._job(job_id).id]
        return base.Deleted(id=job_id, object="job")

    def follow(self, _: Seen, job_id: str) -> None:
        after = int(self.headers.get("Last-Event-ID") or 0)
        waiting = [event for event in self.state.events.get(job_id, []) if event.id > after]
        if not waiting and self._job(job_id).status.is_terminal():
            self.send_response(204)
            self.end_headers()
            return
        cut = self.state.stream_cuts.pop(0) if self.state.stream_cuts else len(waiting)
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b": ping\n\n")
        for event in waiting[:cut]:
            text = f"id: {event.id}\nevent: {event.event}\ndata: {event.model_dump_json()}\n\n"
            self.wfile.write(text.encode())

    def upload(self, seen: Seen) -> BaseModel:
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        fields = {
            part.get_param("name", header="content-disposition"): part
            for part in message_from_bytes(head + seen.body).walk()
        }
        data = fields["file"].get_payload(decode=True)
        purpose = fields["purpose"].get_payload(decode=True)
        assert isinstance(data, bytes)
        assert isinstance(purpose, bytes)
        name = fields["file"].get_filename() or ""
        identifier = f"file_{len(self.state.uploads) + 1:032x}"
        self.state.uploads[identifier] = (name, purpose.decode(), data)
        return operations.File(
            id=identifier, bytes=len(data), created_at=CREATED_AT, filename=name, purpose=purpose.decode()
        )

    def list_sessions(self, seen: Seen) -> BaseModel:
        found = self._sessions_that_fit(seen.query)
        found.sort(key=lambda session: session.created_at, reverse=seen.query.get("order") != "asc")
        return page(found, seen.query)

    def _sessions_that_fit(self, query: dict[str, str]) -> list[resources.Session]:
        return [
            session
            for session in self.state.sessions.values()
            if session.id.startswith(query.get("id_prefix", ""))
            and query.get("job_id") in (None, session.job_id)
            and query.get("correct") in (None, str(session.correct).lower())
            and query.get("condition") in (None, session.condition)
        ]

    def session_stats(self, seen: Seen) -> BaseModel:
        found = self._sessions_that_fit(seen.query)
        size = sum(session.bytes for session in found)
        return resources.SessionStats(sessions=len(found), bytes=size, rows=7 * len(found))

    def delete_session(self, _: Seen, session_id: str) -> BaseModel:
        del self.state.sessions[self._session(session_id).id]
        return base.Deleted(id=session_id, object="activation.session")

    def tensor(self, seen: Seen, session_id: str, hook: str) -> None:
        if (session_id, hook) not in self.state.tensors:
            raise Refused(404, "not_found", f"session {session_id} has no tensor {hook}")
        dtype, array = self.state.tensors[session_id, hook]
        if "rows" in seen.query:
            start, __, stop = seen.query["rows"].partition(":")
            array = array[int(start or 0) : int(stop) if stop else None]
        content = encode_tensors({hook: (dtype, array.shape, array.tobytes())})
        self._send(200, content, "application/octet-stream")

    def download(self, _: Seen, session_id: str, name: str) -> None:
        data = self.state.stored[session_id, name]
        cut = self.state.download_cuts.pop(0) if self.state.download_cuts else len(data)
        self.close_connection = cut < len(data)
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:cut])

    def model_load(self, *_: object) -> BaseModel:
        loads = self.state.model_loads
        return loads.pop(0) if len(loads) > 1 else loads[0]

    def queue(self, _: Seen) -> BaseModel:
        waiting = [job.id for job in self.state.jobs.values() if job.status == "queued"]
        return operations.QueueState(
            paused=bool(self.state.pauses),
            paused_reason="; ".join(pause.reason or "" for pause in self.state.pauses) or None,
            pauses=self.state.pauses,
            jobs={"queued": len(waiting)},
            samples={"pending": 3},
            next=waiting,
            messages=0,
            workers={"ready": 1},
        )

    def pause_queue(self, seen: Seen) -> BaseModel:
        reason = json.loads(seen.body)["reason"]
        pause = operations.QueuePause(kind="manual", reason=reason, by="local", since=CREATED_AT)
        self.state.pauses = [pause, *(p for p in self.state.pauses if p.kind != "manual")]
        return self.queue(seen)

    def resume_queue(self, seen: Seen) -> BaseModel:
        self.state.pauses = [p for p in self.state.pauses if p.kind != "manual"]
        return self.queue(seen)

    def _job(self, job_id: str) -> resources.Job:
        if job_id not in self.state.jobs:
            raise Refused(404, "not_found", f"no job {job_id}")
        return self.state.jobs[job_id]

    def _session(self, session_id: str) -> resources.Session:
        if session_id not in self.state.sessions:
            raise Refused(404, "not_found", f"no session {session_id}")
        return self.state.sessions[session_id]


S = "/v1/activations/sessions"
ROUTES: list[tuple[str, str, Callable[..., BaseModel | None]]] = [
    ("GET", "/v1/jobs", Handler.list_jobs),
    ("POST", "/v1/jobs", Handler.submit),
    ("GET", "/v1/jobs/([^/]+)", lambda self, _, job_id: self._job(job_id)),
    ("DELETE", "/v1/jobs/([^/]+)", Handler.delete_job),
    ("POST", "/v1/jobs/([^/]+)/cancel", Handler.cancel),
    ("POST", "/v1/jobs/([^/]+)/retry", Handler.retry),
    (
        "GET",
        "/v1/jobs/([^/]+)/samples",
        lambda self, seen, job_id: page(self.state.samples.get(job_id, []), seen.query),
    ),
    ("GET", "/v1/jobs/([^/]+)/results", lambda self, _, job_id: self.state.results[job_id]),
    ("GET", "/v1/jobs/([^/]+)/events", Handler.follow),
    ("GET", "/v1/jobs/([^/]+)/comparison", lambda self, *_: self.state.comparison),
    ("GET", "/v1/jobs/([^/]+)/comparison/texts", lambda self, *_: self.state.text_comparison),
    ("POST", "/v1/estimate", Handler.estimate),
    ("POST", "/v1/files", Handler.upload),
    ("DELETE", "/v1/files/([^/]+)", Handler.delete_file),
    ("GET", S, Handler.list_sessions),
    ("GET", f"{S}/stats", Handler.session_stats),
    ("GET", f"{S}/([^/]+)", lambda self, _, session_id: self._session(session_id)),
    ("DELETE", f"{S}/([^/]+)", Handler.delete_session),
    ("GET", f"{S}/([^/]+)/manifest", lambda self, _, session_id: self.state.manifests[session_id]),
    ("GET", f"{S}/([^/]+)/tensors/(.+)", Handler.tensor),
    ("GET", f"{S}/([^/]+)/files/([^/]+)", Handler.download),
    ("GET", "/v1/models", lambda self, seen: page(self.state.models, seen.query)),
    ("POST", "/v1/models/load", Handler.model_load),
    ("GET", "/v1/models/load/([^/]+)", Handler.model_load),
    ("GET", "/v1/model/structure", lambda self, _: self.state.structure),
    ("GET", "/v1/workers", lambda self, seen: page(self.state.workers, seen.query)),
    ("GET", "/v1/queue", Handler.queue),
    ("POST", "/v1/queue/pause", Handler.pause_queue),
    ("POST", "/v1/queue/resume", Handler.resume_queue),
    ("GET", "/readyz", lambda self, _: self._send(200, b"ok\n", "text/plain")),
]


def page(items: Sequence[Any], query: dict[str, str]) -> BaseModel:
    limit = int(query.get("limit", "20"))
    ids = [item.id for item in items]
    start = ids.index(query["after"]) + 1 if "after" in query else 0
    shown = items[start : start + limit]
    return base.ListPage[Any](
        data=[json.loads(item.model_dump_json()) for item in shown],
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=start + limit < len(items),
    )


@pytest.fixture(scope="session", autouse=True)
def one_parser() -> Iterator[None]:
    """Build the parser of all commands once, not in every call of `main`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def service() -> Iterator[ContractServer]:
    """A service of our own on loopback."""
    state = ContractServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"state": state}))
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()
