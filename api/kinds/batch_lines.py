"""Lines of a batch file: each is a chat, and all of them are one job.

The file may be large. It is verified, then checked line by line. Its samples go to a temporary file before
they are inserted. So memory stays bounded and the transaction stays short.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast

from pydantic_core import from_json

from actograph.contract.base import canonical_digest
from actograph.contract.chat_job import BatchJobSpec, ChatJobSpec
from actograph.contract.errors import ActographError, InvalidRequest, ServiceUnavailable
from actograph.contract.job_specs import validated
from actograph.contract.openai import ChatCompletionRequest, CompletionBase, CompletionRequest
from actograph.contract.openai_answers import BatchError, BatchLine, BatchRequest
from api import checks, submission
from api.dependencies import Services
from api.kinds import chat
from api.middleware.bodies import nul_in
from api.submission import Submission, outlook, with_defaults, with_vectors, within_context
from storage.files import files
from storage.samples import NewSample
from storage.submission import named

#: a line can hold a prompt of the largest size
MAX_LINE_BYTES = 16 << 20
REQUESTS: dict[str, type[CompletionBase]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
}
#: most errors reported for one file
MOST_ERRORS = 100
#: fields of a line's job that its input has
OWN_FIELDS = ("capture", "interventions", "expires_after", "tags", "metadata")


class InvalidBatch(Exception):
    """The input file cannot be run."""

    def __init__(self, *errors: BatchError) -> None:
        self.errors = list(errors)
        super().__init__(errors[0].message)


class _Fault(InvalidRequest):
    """An invalid line."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.code = code  # type: ignore[misc]


@contextmanager
def submission_of(
    services: Services, batch_id: str, request: BatchRequest, owner: str
) -> Iterator[Submission[BatchJobSpec]]:
    """Check the job of a batch. Its samples can be read within the block.

    Raises:
        InvalidBatch: with every invalid line, up to a limit.
        ActographError: the job as a whole is refused, or a service is unreachable.
    """
    with TemporaryFile() as kept:
        lines, errors = _CheckedLines(services, request, batch_id, owner, kept), []
        for number, text in _numbered(services, request):
            try:
                lines.add(number, text)
            except ActographError as error:
                errors.append(
                    BatchError(code=error.code, message=error.message, line=number, param=error.param)
                )
                if len(errors) >= MOST_ERRORS:
                    break
        if not errors and not lines.requests:
            errors.append(BatchError(code="empty_file", message="the input file has no requests"))
        if lines.samples > submission.MAX_SAMPLES:
            message = f"{lines.samples} choices; one batch may have {submission.MAX_SAMPLES}"
            errors.append(BatchError(code="too_many_tasks", message=message))
        if errors:
            raise InvalidBatch(*errors)
        yield lines.submission()


def _numbered(services: Services, request: BatchRequest) -> Iterator[tuple[int, bytes]]:
    """Yield lines that are not empty, numbered from 1.

    Raises:
        InvalidBatch: the file exceeds a limit.
        NotFound, StoreDamaged: the file was deleted or is damaged.
        ServiceUnavailable: this process stops, and must not wait for a long file.
    """
    most, found = services.settings.batch_max_requests, 0
    with services.database.read() as session:
        stored = files.stored(files.get(session, request.input_file_id), services.store)
    stored.check_whole()
    with stored.open() as file:
        for number, text in enumerate(iter(partial(file.readline, MAX_LINE_BYTES + 1), b""), 1):
            if services.stopping.is_set():
                raise ServiceUnavailable("this process ends; another one reads the file again")
            if len(text) > MAX_LINE_BYTES:
                message = f"the line is longer than {MAX_LINE_BYTES} bytes"
                raise InvalidBatch(BatchError(code="line_too_long", message=message, line=number))
            if not text.strip():
                continue
            found += 1
            if found > most:
                message = f"the file has more than {most} requests (ACTOGRAPH_BATCH_MAX_REQUESTS); split it"
                raise InvalidBatch(BatchError(code="too_many_tasks", message=message, line=number))
            yield number, text


class _CheckedLines:
    """Checked lines; their samples are in a temporary file, one JSON line per request."""

    def __init__(
        self, services: Services, request: BatchRequest, batch_id: str, owner: str, kept: BinaryIO
    ) -> None:
        self._services = services
        self._request = request
        self._batch_id, self._owner = batch_id, owner
        self._kept = kept
        self._seen: dict[str, int] = {}
        #: the job so far; None before the first line, which names the model
        self._job: Submission[BatchJobSpec] | None = None
        #: digest of capture and interventions -> canonical hooks
        self._hooks: dict[str, list[str]] = {}
        self._uses: set[str] = set()
        self._most_tokens = 0
        self.requests = 0
        self.samples = 0

    def add(self, number: int, text: bytes) -> None:
        """Check a line like a request to its route, and keep it. Raises ActographError."""
        try:
            value = from_json(text, allow_inf_nan=False)
            if fault := nul_in(text) or (None if isinstance(value, dict) else "it is no object"):
                raise ValueError(fault)
        except ValueError as error:
            raise _Fault("invalid_json_line", f"Invalid JSON: {error}") from None
        line = validated(BatchLine, value)
        if line.url != self._request.endpoint:
            message = f"the batch is for {self._request.endpoint}, the line for {line.url}"
            raise _Fault("url_mismatch", message, "url")
        if (before := self._seen.setdefault(line.custom_id, number)) != number:
            message = f"custom_id {line.custom_id!r} is that of line {before} too"
            raise _Fault("duplicate_custom_id", message, "custom_id")
        try:
            spec = self._resolve(line)
            self._check(spec)
        except ActographError as error:
            # the field of the body, not of the job
            error.param = f"body.{chat.request_field(error.param) or ''}".removesuffix(".")
            raise
        self._keep(line.custom_id, spec)

    def _resolve(self, line: BatchLine) -> ChatJobSpec:
        """The request of a line as a job of its own."""
        services, request = self._services, validated(REQUESTS[line.url], line.body)
        model = services.models.require(request.model)
        if self._job is None:
            spec = BatchJobSpec(model=model, batch_id=self._batch_id, endpoint=line.url)
            self._job = outlook(services, spec, self._owner)
        found = chat.spec_of(services, request, self._job.structure)
        if len(found.inputs) != 1:
            raise InvalidRequest("one prompt for each line; write a line for each prompt", param="prompt")
        if any(one.source is not None for one in found.interventions):
            raise InvalidRequest(
                "a batch takes no rows of sessions; store the row as a vector, and name it by vector_id",
                param="interventions",
            )
        if request.stream:
            raise InvalidRequest("a batch does not stream; leave stream out", param="stream")
        if model != self._job.spec.model:
            message = f"a batch is for one model; the first line's is {self._job.spec.model}"
            raise _Fault("model_mismatch", message, "model")
        full = with_vectors(services, found.model_copy(update={"model": model}))
        structure = self._job.structure
        return full if structure is None else checks.with_layers(full, structure)

    def _check(self, spec: ChatJobSpec) -> None:
        """Like a chat's check, but lines alike in capture and interventions are checked once."""
        assert self._job is not None
        line = replace(cast(Submission[Any], self._job), spec=spec)
        checks.sampling(line)
        checks.messages(line)
        key = canonical_digest(spec.model_dump(mode="json", include={"capture", "interventions"}))
        if key not in self._hooks:
            with self._services.database.read() as session:
                vectors, saes = named.stored_vectors(session, spec), named.stored_saes(session, spec)
                self._uses |= {one.id for one in vectors.values()} | {one.id for one in saes.values()}
                line = checks.captured(replace(line, vectors=vectors, saes=saes))
            checks.interventions(line)
            self._hooks[key] = line.hooks or []

    def _keep(self, custom_id: str, spec: ChatJobSpec) -> None:
        own = {name: getattr(spec, name) for name in OWN_FIELDS}
        changes = own | {"custom_id": custom_id, "choices": spec.epochs}
        given = spec.inputs[0].model_copy(update=changes)
        self._kept.write(json.dumps(given.stored, separators=(",", ":")).encode() + b"\n")
        if not self.requests:
            self._first = given.sampling
        self.requests += 1
        self.samples += spec.epochs
        self._most_tokens = max(self._most_tokens, given.most_tokens)

    def submission(self) -> Submission[BatchJobSpec]:
        """The job of all lines."""
        assert self._job is not None
        changes = {
            "sampling": self._first,
            "priority": self._request.priority,
            "tags": self._request.tags,
            "metadata": self._request.metadata or {},
            "deadline_seconds": self._request.window_seconds,
            # failures of one request say nothing about others
            "max_consecutive_failures": 0,
            "requests": self.requests,
            "uses": sorted(self._uses),
        }
        spec = with_defaults(self._services, self._job.spec.model_copy(update=changes))
        # a line above the context fails alone
        job = within_context(replace(self._job, spec=spec), self._most_tokens)
        names = list(dict.fromkeys(name for some in self._hooks.values() for name in some))
        hooks = None if job.structure is None else names
        return replace(job, hooks=hooks).with_samples(self._expand, self.samples)

    def _expand(self) -> Iterator[NewSample]:
        """The samples of all lines."""
        self._kept.seek(0)
        for index, text in enumerate(self._kept):
            stored = json.loads(text)
            yield from chat.choices(index, stored, stored["choices"])
