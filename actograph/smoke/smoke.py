"""Steps of the smoke test, from the connection to the deletion of what it made."""

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actograph import __version__
from actograph.client import Client
from actograph.client.errors import ApiError
from actograph.contract.base import Resource
from actograph.contract.errors import ActographError, NotFound
from actograph.contract.resources import JobStatus, SampleStatus
from actograph.smoke.captured import check_session
from actograph.smoke.failures import FULL, Kind, Outcome, SmokeFailed, classify

if TYPE_CHECKING:
    from actograph.client.blocking.resources.jobs import JobHandle
    from actograph.contract.resources import ModelStructure

TAG = "smoke"
MAX_TOKENS = 8
PROMPTS = ("The sun rises in the", "Two and two make")
PROBLEMS = (
    '{"question": "Tom has 2 apples and buys 3. How many has he?", "answer": "2 + 3 = 5\\n#### 5"}\n'
    '{"question": "Ann has 4 pens and gives 1 away. How many are left?", "answer": "4 - 1 = 3\\n#### 3"}\n'
)
#: routes that the test and its user need
ROUTES = (
    "GET /v1/model/structure",
    "GET /v1/models",
    "POST /v1/models/load",
    "POST /v1/jobs",
    "POST /v1/files",
    "GET /v1/activations/sessions",
    "POST /v1/chat/completions",
)


class Step(Resource):
    """A step of the smoke test and its outcome."""

    step: str
    outcome: Outcome
    seconds: float
    detail: str


@dataclass
class Smoke:
    """One smoke test against one service.

    Args:
        model: name of the expected model; None expects the first served model.
        timeout: seconds to wait for each job.
        report: takes each step when it has ended.
    """

    client: Client
    report: Callable[[Step], None]
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
            self._step("service", Kind.NOT_ACTOGRAPH, self._service)
            self._step("routes", Kind.ROUTES, self._routes)
            self._step("queue", Kind.STORE, self._queue)
            self._step("model", Kind.MODEL, self._model)
            self._step("capture", Kind.JOB, self._capture)
            self._step("read again", Kind.JOB, self._read_again)
            self._step("evaluation", Kind.EVALUATION, self._evaluation)
        except SmokeFailed:
            if self._jobs or self._files:
                with suppress(SmokeFailed):  # reported; the first failure decides
                    self._step("clean up", Kind.CLEANUP, self._clean_up)
            raise
        self._step("clean up", Kind.CLEANUP, self._clean_up)

    def _step(self, name: str, kind: Kind, work: Callable[[], str]) -> None:
        began = time.monotonic()
        try:
            detail = work()
        except ActographError as error:
            failure = classify(error, kind)
            seconds = time.monotonic() - began
            self.report(Step(step=name, outcome="FAILED", seconds=seconds, detail=failure.message))
            raise failure from error
        self.report(Step(step=name, outcome="ok", seconds=time.monotonic() - began, detail=detail))

    def _service(self) -> str:
        try:
            self._capabilities = self.client.capabilities()
        except ApiError as error:
            if error.status == 404:
                raise SmokeFailed(Kind.NOT_ACTOGRAPH, f"this is no Actograph service: {error}") from error
            raise
        version = self._capabilities.version
        if version.split(".")[:2] != __version__.split(".")[:2]:
            raise SmokeFailed(Kind.ROUTES, f"the service has version {version}, this client {__version__}")
        return f"Actograph {version}, {self._capabilities.features.database}"

    def _routes(self) -> str:
        missing = sorted(set(ROUTES) - set(self._capabilities.endpoints))
        if missing:
            raise SmokeFailed(Kind.ROUTES, f"the service lacks {', '.join(missing)}")
        return f"{len(self._capabilities.endpoints)} routes"

    def _queue(self) -> str:
        queue = self.client.queue.get()
        if queue.paused:
            raise SmokeFailed(Kind.STORE, f"the queue is paused: {queue.paused_reason or 'no reason given'}")
        return f"{sum(queue.jobs.values())} jobs waiting or running"

    def _model(self) -> str:
        served = self.client.models.list()
        names = ", ".join(one.id for one in served) or "none"
        if not served or (self.model is not None and all(one.id != self.model for one in served)):
            raise SmokeFailed(Kind.MODEL, f"model {self.model or ''} is not served; served models: {names}")
        wanted = self.model or served[0].id
        try:
            self._structure: ModelStructure = self.client.models.structure(wanted)
        except (ApiError, NotFound) as error:
            if error.status != 404:
                raise
            raise SmokeFailed(Kind.MODEL, f"no worker has loaded {wanted}: {error}") from error
        if self._structure.model != wanted:
            raise SmokeFailed(Kind.MODEL, f"the loaded model is {self._structure.model}, not {wanted}")
        found = self._structure
        return f"{found.model}, {found.architecture}, {found.num_layers} layers, {found.device}"

    def _capture(self) -> str:
        job = self._run(self._spec(PROMPTS[0]))
        self._first = self._session_of(job)
        self._digests = check_session(self._first, self._structure)
        return f"{self._first.rows} rows of {len(self._digests)} hooks, finite"

    def _read_again(self) -> str:
        """Read the first session again after another request."""
        if self._structure.chat_template:
            fields = {"max_tokens": MAX_TOKENS, "temperature": 0.0, "capture": {}, "tags": [TAG]}
            answer = self.client.chat(PROMPTS[1], model=self._structure.model, timeout=self.timeout, **fields)
            if answer.session_id is None:
                raise SmokeFailed(Kind.CAPTURE, "a chat with capture has no session")
            second = self.client.sessions.get(answer.session_id)
            self._jobs.append(second.job_id)
        else:
            second = self._session_of(self._run(self._spec(PROMPTS[1])))
        check_session(second, self._structure)
        if check_session(self.client.sessions.get(self._first.id), self._structure) != self._digests:
            raise SmokeFailed(Kind.CAPTURE, f"session {self._first.id} changed after another request")
        return "the same rows after another request" + (" (chat)" if self._structure.chat_template else "")

    def _evaluation(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "smoke.jsonl"
            path.write_text(PROBLEMS, encoding="utf-8")
            file = self.client.files.upload(path)
        self._files.append(file.id)
        spec = {"kind": "evaluation", "task": "gsm8k", "dataset": {"file_id": file.id}}
        job = self._run(self._spec(None) | spec)
        samples = list(self.client.jobs.samples(job.id))
        count = PROBLEMS.count("\n")
        if len(samples) != count or any(one.session_id is None or not one.scores for one in samples):
            raise SmokeFailed(Kind.EVALUATION, f"job {job.id} has not {count} samples with score and session")
        for sample in samples:
            check_session(self.client.sessions.get(str(sample.session_id)), self._structure)
        return f"{count} problems, scored"

    def _clean_up(self) -> str:
        jobs, files = len(self._jobs), len(self._files)
        while self._jobs:
            self._delete(self._jobs.pop())
        while self._files:
            self.client.files.delete(self._files.pop())
        return f"deleted {jobs} jobs, {files} files"

    def _delete(self, job_id: str) -> None:
        if not self.client.jobs.get(job_id).status.is_terminal():
            self.client.jobs.cancel(job_id)
            self.client.jobs.wait(job_id, timeout=self.timeout, check=False)
        self.client.jobs.delete(job_id)

    def _spec(self, prompt: str | None) -> dict[str, Any]:
        spec: dict[str, Any] = {
            "model": self._structure.model,
            "sampling": {"temperature": 0.0, "max_tokens": MAX_TOKENS},
            "capture": {},
            "tags": [TAG],
        }
        return spec if prompt is None else spec | {"kind": "capture", "inputs": [{"prompt": prompt}]}

    def _run(self, spec: dict[str, Any]) -> "JobHandle":
        job = self.client.submit(spec)
        self._jobs.append(job.id)
        job = self.client.jobs.wait(job, timeout=self.timeout, check=False)
        if job.status is JobStatus.COMPLETED and job.progress.failed == 0:
            return job
        errors = [job.error, *(one.error for one in self.client.jobs.samples(job.id))]
        found = next((error for error in errors if error is not None), None)
        reason = found.message if found else "no reason was recorded"
        kind = Kind.STORE if found and found.type in FULL else Kind.JOB
        raise SmokeFailed(kind, f"job {job.id} is {job.status}: {reason}")

    def _session_of(self, job: "JobHandle") -> Any:
        sample = next(iter(self.client.jobs.samples(job.id)), None)
        if sample is None or sample.status is not SampleStatus.COMPLETED or sample.session_id is None:
            raise SmokeFailed(Kind.CAPTURE, f"the sample of job {job.id} has no session")
        return self.client.sessions.get(sample.session_id)
