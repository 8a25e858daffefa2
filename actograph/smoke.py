"""The smoke test of a running service, from the connection to the deletion of what it made."""

import hashlib
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from actograph import __version__
from actograph.client import Client
from actograph.client.errors import ApiError, ServiceUnreachable, UnexpectedAnswer, WaitTimeout
from actograph.client.jobs import JobHandle
from actograph.client.sessions import SessionHandle
from actograph.contract.errors import ActographError
from actograph.contract.models import ModelStructure
from actograph.contract.resources import JobStatus

TAG = "smoke"
MAX_TOKENS = 8
PROMPTS = ("The sun rises in the", "Two and two make")
PROBLEMS = (
    '{"question": "Tom has 2 apples and buys 3. How many has he?", "answer": "2 + 3 = 5\\n#### 5"}\n'
    '{"question": "Ann has 4 pens and gives 1 away. How many are left?", "answer": "4 - 1 = 3\\n#### 3"}\n'
)
#: routes that the test and its user need
ROUTES = (
    "GET /v1/model/structure", "GET /v1/models", "POST /v1/models/load", "POST /v1/jobs", "POST /v1/files",
    "GET /v1/activations/sessions", "POST /v1/chat/completions",
)  # fmt: skip


#: statuses of a proxy whose service does not answer
_GATEWAY = (502, 503, 504)
#: error codes of a store without space
FULL = ("storage_full", "insufficient_resources", "quota_exceeded")


class FailureKind(IntEnum):
    """A kind of failure; the value is the exit status."""

    KEY = 4
    UNREACHABLE = 10
    NOT_ACTOGRAPH = 11
    ROUTES = 12
    MODEL = 13
    STORE = 14
    CAPTURE = 15
    JOB = 16
    EVALUATION = 17
    CLEANUP = 18


class SmokeFailed(ActographError):
    """A step of the smoke test failed."""

    code = "smoke_failed"

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def failure_of(error: ActographError, during: FailureKind) -> SmokeFailed:
    """The failure behind an error of the client; `during` is the kind if it says nothing more precise."""
    if isinstance(error, SmokeFailed):
        return error
    kind = during
    if isinstance(error, ServiceUnreachable):
        kind = FailureKind.UNREACHABLE
    elif isinstance(error, UnexpectedAnswer):
        kind = FailureKind.NOT_ACTOGRAPH
    elif error.code in FULL:
        kind = FailureKind.STORE
    elif error.code == "model_not_found":
        kind = FailureKind.MODEL
    elif isinstance(error, ApiError) and error.code == "http_error":  # no problem+json: not from Actograph
        kind = FailureKind.UNREACHABLE if error.status in _GATEWAY else FailureKind.NOT_ACTOGRAPH
    elif error.status in (401, 403):
        kind = FailureKind.KEY
    return SmokeFailed(kind, str(error))


@dataclass(frozen=True)
class SmokeStep:
    """An ended step; `outcome` is `ok` or `FAILED`."""

    step: str
    outcome: str
    seconds: float
    detail: str


@dataclass
class Smoke:
    """One smoke test against one service.

    Attributes:
        report: takes each step when it has ended.
        model: name of the expected model; None expects the first served model.
        timeout: seconds to wait for each job.
    """

    client: Client
    report: Callable[[SmokeStep], None]
    model: str | None = None
    timeout: float = 600.0
    _jobs: list[str] = field(default_factory=list)
    _files: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Run all steps, and delete what they made, also after a failure.

        Raises:
            SmokeFailed: the first step that failed.
        """
        try:
            self._step("service", FailureKind.NOT_ACTOGRAPH, self._service)
            self._step("queue", FailureKind.STORE, self._queue)
            self._step("model", FailureKind.MODEL, self._model)
            self._step("capture", FailureKind.JOB, self._capture)
            self._step("read again", FailureKind.JOB, self._read_again)
            self._step("evaluation", FailureKind.EVALUATION, self._evaluation)
        except SmokeFailed:
            if self._jobs or self._files:
                with suppress(SmokeFailed):  # reported; the first failure decides
                    self._step("clean up", FailureKind.CLEANUP, self._clean_up)
            raise
        self._step("clean up", FailureKind.CLEANUP, self._clean_up)

    def _step(self, name: str, kind: FailureKind, work: Callable[[], str]) -> None:
        began = time.monotonic()
        try:
            detail = work()
        except ActographError as error:
            failure = failure_of(error, kind)
            self.report(SmokeStep(name, "FAILED", time.monotonic() - began, failure.message))
            raise failure from error
        self.report(SmokeStep(name, "ok", time.monotonic() - began, detail))

    def _service(self) -> str:
        return found_service(self.client)

    def _queue(self) -> str:
        queue = self.client.queue.get()
        if queue.paused:
            raise SmokeFailed(
                FailureKind.STORE, f"the queue is paused: {queue.paused_reason or 'no reason given'}"
            )
        return f"{sum(queue.jobs.values())} jobs waiting or running"

    def _model(self) -> str:
        served = [one.id for one in self.client.models.list()]
        wanted = self.model or next(iter(served), "")
        if wanted not in served:
            names = ", ".join(served) or "none"
            raise SmokeFailed(FailureKind.MODEL, f"model {wanted} is not served; served models: {names}")
        try:
            self._structure = self.client.models.structure(wanted)
        except ApiError as error:
            if error.status != 404:
                raise
            raise SmokeFailed(FailureKind.MODEL, f"no worker has loaded {wanted}: {error}") from error
        found = self._structure
        if found.model != wanted:
            raise SmokeFailed(FailureKind.MODEL, f"the loaded model is {found.model}, not {wanted}")
        return f"{found.model}, {found.architecture}, {found.num_layers} layers, {found.device}"

    def _capture(self) -> str:
        self._first = self._captured(PROMPTS[0])
        self._digests = check_session(self._first, self._structure)
        return f"{self._first.rows} rows of {len(self._digests)} hooks, finite"

    def _read_again(self) -> str:
        """Read the first session again after another request."""
        chat = self._structure.chat_template
        if chat:
            fields: dict[str, Any] = {
                "max_tokens": MAX_TOKENS,
                "temperature": 0.0,
                "capture": {},
                "tags": [TAG],
            }
            answer = self.client.chat(PROMPTS[1], model=self._structure.model, **fields)
            if answer.session_id is None:
                raise SmokeFailed(FailureKind.CAPTURE, "a chat with capture has no session")
            second = self.client.sessions.get(answer.session_id)
            self._jobs.append(second.job_id)
        else:
            second = self._captured(PROMPTS[1])
        check_session(second, self._structure)
        if check_session(self.client.sessions.get(self._first.id), self._structure) != self._digests:
            raise SmokeFailed(FailureKind.CAPTURE, f"session {self._first.id} changed after another request")
        return "the same rows after another request" + (" (chat)" if chat else "")

    def _evaluation(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "smoke.jsonl"
            path.write_text(PROBLEMS, encoding="utf-8")
            file = self.client.files.upload(path)
        self._files.append(file.id)
        job = self._run({"kind": "evaluation", "task": "gsm8k", "dataset": {"file_id": file.id}})
        samples, count = list(job.samples()), PROBLEMS.count("\n")
        if len(samples) != count or any(one.session_id is None or not one.scores for one in samples):
            raise SmokeFailed(
                FailureKind.EVALUATION, f"job {job.id} has not {count} samples with score and session"
            )
        for sample in samples:
            check_session(self.client.sessions.get(str(sample.session_id)), self._structure)
        return f"{count} problems, scored"

    def _clean_up(self) -> str:
        jobs, files = len(self._jobs), len(self._files)
        while self._jobs:
            job = self.client.jobs.get(self._jobs.pop())
            if not job.status.is_terminal():
                job.cancel().wait(timeout=self.timeout, check=False)
            self.client.jobs.delete(job.id)
        while self._files:
            self.client.files.delete(self._files.pop())
        return f"deleted {jobs} jobs, {files} files"

    def _captured(self, prompt: str) -> SessionHandle:
        """Run a job of one prompt and return its session."""
        job = self._run({"kind": "capture", "inputs": [{"prompt": prompt}]})
        session = next(job.sessions(), None)
        if session is None:
            raise SmokeFailed(FailureKind.CAPTURE, f"the sample of job {job.id} has no session")
        return session

    def _run(self, spec: dict[str, Any]) -> JobHandle:
        sampling = {"temperature": 0.0, "max_tokens": MAX_TOKENS}
        common = {"model": self._structure.model, "sampling": sampling, "capture": {}, "tags": [TAG]}
        job = self.client.submit(common | spec)
        self._jobs.append(job.id)
        try:
            job = job.wait(timeout=self.timeout, check=False)
        except WaitTimeout as error:
            raise SmokeFailed(FailureKind.JOB, str(error)) from error
        if job.status is JobStatus.COMPLETED and job.progress.failed == 0:
            return job
        errors = [job.error, *(one.error for one in job.samples())]
        found = next((error for error in errors if error is not None), None)
        reason = found.message if found else "no reason was recorded"
        kind = FailureKind.STORE if found and found.type in FULL else FailureKind.JOB
        raise SmokeFailed(kind, f"job {job.id} is {job.status}: {reason}")


def found_service(client: Client) -> str:
    """Say which service answers.

    Raises:
        SmokeFailed: it is none, or one of another version.
        ActographError: it cannot be asked.
    """
    try:
        found = client.capabilities()
    except ApiError as error:
        if error.status == 404:
            raise SmokeFailed(FailureKind.NOT_ACTOGRAPH, f"this is no Actograph service: {error}") from error
        raise
    if found.version.split(".")[:2] != __version__.split(".")[:2]:
        raise SmokeFailed(
            FailureKind.ROUTES, f"the service has version {found.version}, this client {__version__}"
        )
    if missing := sorted(set(ROUTES) - set(found.endpoints)):
        raise SmokeFailed(FailureKind.ROUTES, f"the service lacks {', '.join(missing)}")
    return f"Actograph {found.version}, {len(found.endpoints)} routes"


def check_session(session: SessionHandle, structure: ModelStructure) -> dict[str, str]:
    """Read all rows of all hooks of a session, and check them.

    Returns:
        hook -> sha256 of its rows.

    Raises:
        SmokeFailed: the session is of another model, or its activations are empty, incomplete or not finite.
    """
    if session.model != structure.model:
        raise SmokeFailed(
            FailureKind.MODEL, f"session {session.id} is of {session.model}, not {structure.model}"
        )
    rows = session.prompt_tokens + session.generated_tokens - 1
    if not session.hooks or session.rows != rows or rows < 1:
        told = f"{session.rows} rows of {len(session.hooks)} hooks, {rows} rows were expected"
        raise SmokeFailed(FailureKind.CAPTURE, f"session {session.id} has {told}")
    digests = {}
    for hook in session.hooks:
        values, known = session[hook][:], structure.tensor_of(hook)
        wanted = (rows, known.width if known is not None else values.shape[-1])
        faults = {
            f"has the shape {list(values.shape)}, not {list(wanted)}": values.shape != wanted,
            "has values that are not finite": not np.isfinite(values).all(),
            "has rows of zeros only": not values.any(axis=-1).all(),
        }
        for fault, is_found in faults.items():
            if is_found:
                raise SmokeFailed(FailureKind.CAPTURE, f"{hook} of session {session.id} {fault}")
        digests[hook] = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
    return digests
