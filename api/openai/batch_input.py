"""Turn the input file of a batch into its job.

The file may be large. It is verified, then checked line by line. Its samples go to a temporary file before
they are inserted. So memory stays bounded and the transaction stays short.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from tempfile import TemporaryFile
from typing import BinaryIO

from pydantic_core import from_json

from actograph.contract.base import canonical_digest
from actograph.contract.chat_job import BatchInput, BatchJobSpec, ChatJobSpec
from actograph.contract.errors import ActographError, InvalidRequest, ServiceUnavailable
from actograph.contract.job_specs import validated
from actograph.contract.models import ModelStructure
from actograph.contract.openai import ChatCompletionRequest, CompletionBase, CompletionRequest
from actograph.contract.openai_answers import BatchError, BatchLine, BatchRequest
from actograph.contract.specs import SamplingSpec
from api import submit
from api.check import check_hooks, check_prompts
from api.dependencies import Services
from api.estimate import Submission
from api.middleware.bodies import nul_in
from api.openai import chat_requests
from storage.files import files
from storage.samples import NewSample
from storage.submission import named

#: a line can hold a prompt of the largest size
MAX_LINE_BYTES = 16 << 20
#: most errors reported for one file
MOST_ERRORS = 100
#: fields of a line's job that its samples store
OWN_FIELDS = ("sampling", "capture", "interventions", "expires_after", "tags", "metadata")


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
) -> Iterator[Submission]:
    """Check the job of a batch. Its samples can be read within the block.

    Raises:
        InvalidBatch: with every invalid line, up to a limit.
        ActographError: the job as a whole is refused, or a service is unreachable.
    """
    with TemporaryFile() as kept:
        lines, errors = _Lines(services, request, kept), []
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
        if lines.samples > submit.MAX_SAMPLES:
            message = f"{lines.samples} choices; one batch may have {submit.MAX_SAMPLES}"
            errors.append(BatchError(code="too_many_tasks", message=message))
        if errors:
            raise InvalidBatch(*errors)
        yield lines.submission(batch_id, owner)


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


class _Lines:
    """Checked lines; their samples are in a temporary file, one JSON line per request."""

    def __init__(self, services: Services, request: BatchRequest, kept: BinaryIO) -> None:
        self._services = services
        self._request = request
        self._kept = kept
        self._seen: dict[str, int] = {}
        #: canonical name of the model; "" before the first line
        self._model = ""
        self._structure: ModelStructure | None = None
        #: digest of capture and interventions -> canonical hooks
        self._hooks: dict[str, list[str] | None] = {}
        self._sampling = SamplingSpec()
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
            spec = self._spec(line)
            self._check_hooks(spec)
        except ActographError as error:
            # name the field of the body, not of the job
            param = (error.param or "").replace("inputs.0.", "").removeprefix("sampling.")
            error.param = f"body.{param}".removesuffix(".")
            raise
        self._keep(line.custom_id, spec)

    def _spec(self, line: BatchLine) -> ChatJobSpec:
        """The request of a line as a job of its own."""
        services, is_chat = self._services, line.url == "/v1/chat/completions"
        kind: type[CompletionBase] = ChatCompletionRequest if is_chat else CompletionRequest
        request = validated(kind, line.body)
        model = services.models.require(request.model)
        if not self._model:
            self._model = model
            with services.database.read() as session:
                self._structure = services.structures.find(session, model)
        spec = chat_requests.job_spec(request, services, self._structure)
        if len(spec.inputs) != 1:
            raise InvalidRequest("one prompt for each line; write a line for each prompt", param="prompt")
        if request.stream:
            raise InvalidRequest("a batch does not stream; leave stream out", param="stream")
        if model != self._model:
            message = f"a batch is for one model; the first line's is {self._model}"
            raise _Fault("model_mismatch", message, "model")
        return spec.model_copy(update={"model": model})

    def _check_hooks(self, spec: ChatJobSpec) -> None:
        check_prompts(spec, self._structure)
        key = canonical_digest(spec.model_dump(mode="json", include={"capture", "interventions"}))
        if key not in self._hooks:
            with self._services.database.read() as session:
                stored = named.stored_vectors(session, spec)
            self._hooks[key] = check_hooks(spec, self._structure, stored)

    def _keep(self, custom_id: str, spec: ChatJobSpec) -> None:
        own = {name: getattr(spec, name) for name in OWN_FIELDS}
        given = BatchInput(**spec.inputs[0].model_dump(), **own, custom_id=custom_id, choices=spec.epochs)
        stored = given.model_dump(mode="json", exclude_none=True)
        self._kept.write(json.dumps(stored, separators=(",", ":")).encode() + b"\n")
        if not self.requests:
            self._sampling = spec.sampling
        self.requests += 1
        self.samples += given.choices
        self._most_tokens = max(self._most_tokens, given.most_tokens)

    def submission(self, batch_id: str, owner: str) -> Submission:
        """The job of all lines."""
        services, request = self._services, self._request
        spec = BatchJobSpec(
            model=self._model,
            sampling=self._sampling,
            priority=request.priority,
            tags=request.tags,
            metadata=request.metadata or {},
            deadline_seconds=request.window_seconds,
            # failures of one request say nothing about others
            max_consecutive_failures=0,
            batch_id=batch_id,
            endpoint=request.endpoint,
            requests=self.requests,
        )
        # a line above the context fails alone
        spec = submit.within_context(submit.with_defaults(services, spec), self._structure, self._most_tokens)
        names = list(dict.fromkeys(name for some in self._hooks.values() for name in some or ()))
        with services.database.read() as session:
            ahead = submit.outlook(services, session, spec, owner)
        hooks = names if self._structure else None
        return replace(ahead, hooks=hooks, samples=self._new_samples, total=self.samples)

    def _new_samples(self) -> Iterator[NewSample]:
        """The samples of all lines. The choices of a line have the seeds s, s + 1, s + 2, ..."""
        self._kept.seek(0)
        for index, text in enumerate(self._kept):
            stored = json.loads(text)
            for choice in range(stored["choices"]):
                yield NewSample(
                    sample_index=index,
                    condition="",
                    epoch=choice,
                    input=stored,
                    seed=(stored["sampling"]["seed"] + choice) % 2**63,
                )
