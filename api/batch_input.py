"""From the lines of an input file to the job of a batch. Each line is checked as its route would check it."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from actograph.contract.batches import BatchError, BatchInput, BatchJobSpec, BatchLine, BatchRequest
from actograph.contract.chat import ChatCompletionRequest, CompletionRequest
from actograph.contract.chat_job import ChatJobSpec
from actograph.contract.errors import ActographError, InvalidRequest
from api import chat_requests, planning, submissions
from api.dependencies import Services
from api.submissions import Submission
from api.validation import InvalidFields, parse_body
from storage.samples import NewSample

#: errors that are told of one file
MOST_ERRORS = 100
#: a line can hold a prompt of the largest size
MAX_LINE_BYTES = 16 << 20
#: fields that must say the same in every line, since one job has one of each
SHARED = ("model", "capture", "interventions", "expires_after")


class InvalidBatch(InvalidRequest):
    """The input file cannot be run."""

    def __init__(self, errors: list[BatchError]) -> None:
        self.errors = errors
        super().__init__(errors[0].message)


def submission_of(services: Services, batch_id: str, request: BatchRequest, owner: str | None) -> Submission:
    """The job of a batch, checked.

    Raises:
        InvalidBatch: with every line at fault, up to a limit.
        ActographError: the job as a whole is refused.
    """
    inputs: list[BatchInput] = []
    first: ChatJobSpec | None = None
    errors: list[BatchError] = []
    seen: dict[str, int] = {}
    for number, text in _lines(services, request):
        try:
            line, spec = _read(services, request, text)
            if line.custom_id in seen:
                raise InvalidRequest(
                    f"custom_id {line.custom_id!r} is that of line {seen[line.custom_id]} too",
                    param="custom_id",
                )
            seen[line.custom_id] = number
            first = first or spec
            _same(first, spec)
        except ActographError as error:
            param = error.param or None
            errors.append(BatchError(code=error.code, message=error.message, line=number, param=param))
            if len(errors) >= MOST_ERRORS:
                break
            continue
        given = spec.inputs[0]
        inputs.append(
            BatchInput(
                **given.model_dump(),
                custom_id=line.custom_id,
                sampling=spec.sampling,
                choices=spec.epochs,
            )
        )
    if first is None and not errors:
        errors.append(BatchError(code="empty_file", message="the input file has no requests"))
    if errors or first is None:
        raise InvalidBatch(errors)
    spec = BatchJobSpec(
        model=first.model,
        inputs=inputs,
        sampling=_widest(services, first.model, inputs),
        capture=first.capture,
        interventions=first.interventions,
        expires_after=first.expires_after,
        priority=request.priority,
        tags=request.tags,
        metadata=request.metadata or {},
        deadline_seconds=request.window_seconds,
        # a request says nothing of the others
        max_consecutive_failures=0,
        webhook=request.webhook,
        batch_id=batch_id,
        endpoint=request.endpoint,
    )
    total = sum(given.choices for given in inputs)
    if total > submissions.MAX_SAMPLES:
        raise InvalidBatch(
            [
                BatchError(
                    code="too_many_choices",
                    message=f"{total} choices; one batch may have {submissions.MAX_SAMPLES}",
                )
            ]
        )
    checked = replace(
        submissions.check(services, spec), samples=lambda: _samples(inputs), total=total, owner=owner
    )
    planning.admit(services, checked)
    return checked


def _lines(services: Services, request: BatchRequest) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, counted from 1. Raises InvalidBatch beyond the limits."""
    most = services.settings.batch_max_requests
    found = 0
    for number, text in enumerate(_pieces(services.store.stream(f"files/{request.input_file_id}")), 1):
        if not text.strip():
            continue
        found += 1
        if found > most:
            message = f"the file has more than {most} requests (ACTOGRAPH_BATCH_MAX_REQUESTS); split it"
            raise InvalidBatch([BatchError(code="too_many_requests", message=message, line=number)])
        yield number, text


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines of a stream of bytes. Raises InvalidBatch at one that is too long."""
    rest = bytearray()
    number = 1
    for chunk in chunks:
        rest += chunk
        *whole, last = bytes(rest).split(b"\n")
        yield from whole
        number += len(whole)
        rest = bytearray(last)
        if len(rest) > MAX_LINE_BYTES:
            message = f"the line is longer than {MAX_LINE_BYTES} bytes"
            raise InvalidBatch([BatchError(code="line_too_long", message=message, line=number)])
    yield bytes(rest)


def _read(services: Services, request: BatchRequest, text: bytes) -> tuple[BatchLine, ChatJobSpec]:
    """A line, and the job that its request would be alone. Raises InvalidRequest."""
    line = parse_body(BatchLine, text)
    if line.url != request.endpoint:
        raise InvalidRequest(f"the batch is for {request.endpoint}, the line for {line.url}", param="url")
    body = json.dumps(line.body).encode()
    try:
        if line.url == "/v1/chat/completions":
            chat = parse_body(ChatCompletionRequest, body)
            _refuse_kept_elsewhere(chat.stream, chat.metadata, chat.tags)
            return line, chat_requests.chat_spec(chat, services)
        completion = parse_body(CompletionRequest, body)
        _refuse_kept_elsewhere(completion.stream, None, completion.tags)
        if len(completion.prompts) != 1:
            raise InvalidRequest("one prompt for each line; write a line for each prompt", param="prompt")
        return line, chat_requests.completion_spec(completion, services)
    except InvalidFields as error:
        param = ".".join(("body", error.param)) if error.param else "body"
        raise InvalidRequest(error.message, param=param) from None
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param=f"body.{error.param}" if error.param else "body") from None


def _refuse_kept_elsewhere(stream: bool | None, metadata: Any, tags: Any) -> None:
    if stream:
        raise InvalidRequest("a batch does not stream; leave stream out", param="stream")
    if metadata:
        raise InvalidRequest("metadata belongs to the batch; tell lines by custom_id", param="metadata")
    if tags:
        raise InvalidRequest("tags belong to the batch", param="tags")


def _same(first: ChatJobSpec, spec: ChatJobSpec) -> None:
    for field in SHARED:
        if getattr(first, field) != getattr(spec, field):
            raise InvalidRequest(
                f"{field} must be the same in every line; send a batch for each", param=f"body.{field}"
            )


def _widest(services: Services, name: str, inputs: list[BatchInput]) -> Any:
    """The sampling by which memory is planned: the most tokens that any line may generate."""
    most = max(given.max_tokens or given.default_max_tokens for given in inputs)
    model = services.models.require(name)
    with services.database.read() as session:
        structure = services.structures.find(session, model)
    if structure is not None:
        # a line that asks for more fails by itself
        most = min(most, structure.context_length - 1)
    return inputs[0].sampling.model_copy(update={"max_tokens": most})


def _samples(inputs: list[BatchInput]) -> Iterator[NewSample]:
    """One sample for each choice; those of one line have the seeds s, s + 1, s + 2, ..."""
    for index, given in enumerate(inputs):
        stored = given.model_dump(mode="json", exclude_none=True)
        for choice in range(given.choices):
            yield NewSample(
                sample_index=index,
                condition="",
                epoch=choice,
                input=stored,
                seed=(given.sampling.seed + choice) % 2**63,
            )
