"""Lines of a batch's input file, each checked like a request to its route."""

from collections.abc import Iterable, Iterator
from typing import Any

from actograph.contract.batches import BatchError, BatchLine, BatchRequest
from actograph.contract.chat.chat import ChatCompletionRequest, CompletionRequest
from actograph.contract.chat.chat_job import ChatJobSpec
from actograph.contract.errors import ActographError, InvalidRequest, ServiceUnavailable
from actograph.contract.resources import ModelStructure
from actograph.contract.specs import canonical_digest
from api.bodies import parse_body, validate
from api.dependencies import Services
from api.errors import InvalidFields
from api.openai import chat_requests
from api.submission.check import check_hooks, check_prompts
from api.submission.resolve import stored_vectors
from storage.files import files

#: a line can hold a prompt of the largest size
MAX_LINE_BYTES = 16 << 20
#: most remembered checks of captures and interventions
MOST_CHECKED = 1000


class InvalidBatch(InvalidRequest):
    """The input file cannot be run."""

    def __init__(self, errors: list[BatchError]) -> None:
        self.errors = errors
        super().__init__(errors[0].message)


class LineFault(InvalidRequest):
    """An invalid line, with OpenAI's code for batches."""

    def __init__(self, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param)
        # a class has one code, but each line its own
        self.code = code  # type: ignore[misc]


def numbered(services: Services, request: BatchRequest) -> Iterator[tuple[int, bytes]]:
    """Yield lines that are not empty, numbered from 1.

    Raises:
        InvalidBatch: the file exceeds a limit.
        NotFound, StoreDamaged: the file was deleted or is damaged.
        ServiceUnavailable: this process stops, and must not wait for a long file.
    """
    most = services.settings.batch_max_requests
    with services.database.read() as session:
        row = files.get(session, request.input_file_id)
    stored = files.stored(row, services.store)
    found = 0
    for number, text in enumerate(_pieces(stored.stream()), 1):
        if services.stopping.is_set():
            raise ServiceUnavailable("this process ends; another one reads the file again")
        if not text.strip():
            continue
        found += 1
        if found > most:
            message = f"the file has more than {most} requests (ACTOGRAPH_BATCH_MAX_REQUESTS); split it"
            raise InvalidBatch([BatchError(code="too_many_tasks", message=message, line=number)])
        yield number, text


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Split a stream into lines. Raises InvalidBatch if a line is too long."""
    rest = bytearray()
    number = 1
    for chunk in chunks:
        rest += chunk
        if b"\n" in chunk:
            *whole, last = bytes(rest).split(b"\n")
            yield from whole
            number += len(whole)
            rest = bytearray(last)
        if len(rest) > MAX_LINE_BYTES:
            message = f"the line is longer than {MAX_LINE_BYTES} bytes"
            raise InvalidBatch([BatchError(code="line_too_long", message=message, line=number)])
    yield bytes(rest)


class LineReader:
    """Reads lines in order, and compares each with the lines before."""

    def __init__(self, services: Services, request: BatchRequest) -> None:
        self._services = services
        self._request = request
        self._seen: dict[str, int] = {}
        #: canonical name; None before the first line
        self.model: str | None = None
        self._structure: ModelStructure | None = None
        #: digest of capture and interventions -> canonical hooks, or the error
        self._checked: dict[str, list[str] | ActographError | None] = {}

    def read(self, number: int, text: bytes) -> tuple[BatchLine, ChatJobSpec, list[str] | None]:
        """Read a line, its request as a job of its own, and the captured hooks.

        The hooks are None if no worker has loaded the model yet.

        Raises:
            InvalidRequest: `param` names the field of the line.
        """
        try:
            line = parse_body(BatchLine, text)
        except InvalidFields as error:
            code = "invalid_request" if error.param else "invalid_json_line"
            raise LineFault(code, error.message, param=error.param) from None
        if line.url != self._request.endpoint:
            message = f"the batch is for {self._request.endpoint}, the line for {line.url}"
            raise LineFault("url_mismatch", message, param="url")
        if (before := self._seen.setdefault(line.custom_id, number)) != number:
            message = f"custom_id {line.custom_id!r} is that of line {before} too"
            raise LineFault("duplicate_custom_id", message, param="custom_id")
        try:
            spec = self._spec(line)
            return line, spec, self._hooks(spec)
        except ActographError as error:
            # name the field of the body, not of the job
            param = (error.param or "").replace("inputs.0.", "").removeprefix("sampling.")
            told = f"body.{param}" if param else "body"
            raise LineFault(error.code, error.message, param=told) from None

    def _spec(self, line: BatchLine) -> ChatJobSpec:
        services = self._services
        if line.url == "/v1/chat/completions":
            chat = validate(ChatCompletionRequest, line.body)
            _refuse_stream(chat.stream)
            spec = chat_requests.chat_spec(chat, services)
        else:
            completion = validate(CompletionRequest, line.body)
            _refuse_stream(completion.stream)
            if len(completion.prompts) != 1:
                raise InvalidRequest("one prompt for each line; write a line for each prompt", param="prompt")
            spec = chat_requests.completion_spec(completion, services)
        model = services.models.require(spec.model)
        if self.model is None:
            self.model = model
            with services.database.read() as session:
                self._structure = services.structures.find(session, model)
        elif model != self.model:
            message = f"a batch is for one model; the first line's is {self.model}"
            raise LineFault("model_mismatch", message, param="model")
        return spec.model_copy(update={"model": model})

    def _hooks(self, spec: ChatJobSpec) -> list[str] | None:
        check_prompts(spec, self._structure)
        asked = canonical_digest(spec.model_dump(mode="json", include={"capture", "interventions"}))
        if asked not in self._checked:
            if len(self._checked) >= MOST_CHECKED:
                self._checked.clear()
            try:
                with self._services.database.read() as session:
                    stored = stored_vectors(session, spec)
                self._checked[asked] = check_hooks(spec, self._structure, stored)
            except InvalidRequest as error:
                self._checked[asked] = error
        known = self._checked[asked]
        if isinstance(known, ActographError):
            raise known
        return known


def _refuse_stream(stream: Any) -> None:
    if stream:
        raise InvalidRequest("a batch does not stream; leave stream out", param="stream")
