"""Parse request bodies, and turn pydantic's errors into fields that a client recognises.

pydantic's `loc` names members of unions beside fields (`dataset.FileDataset.file_id`). Only steps in the
client's body are kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from actograph.contract.batches import BatchLine
from actograph.contract.chat.chat import ChatCompletionRequest, CompletionRequest
from actograph.contract.errors import InvalidRequest
from actograph.contract.interventions import MAX_WIDTH, NewVector
from actograph.contract.specs import (
    JOB_KINDS,
    MAX_INPUTS,
    AnyJobSpec,
    CaptureInput,
    CaptureJobSpec,
    job_spec_adapter,
)
from api.problems.json_outline import Bounds, outline, require_bounded

MAX_REPORTED = 20
#: bodies may hold a stored vector, or some vectors of a model's width
_LONG_LISTS = Bounds(values=MAX_WIDTH + MAX_WIDTH // 5)
_JOB_BOUNDS = _LONG_LISTS
#: other models have the default bounds
_BOUNDS: Mapping[type[BaseModel], Bounds] = {
    ChatCompletionRequest: _LONG_LISTS,
    CompletionRequest: _LONG_LISTS,
    BatchLine: Bounds(structures=1 << 16, values=_LONG_LISTS.values),
    NewVector: _LONG_LISTS,
}
#: a list that may hold more than the rest of the body
_LISTS: Mapping[type[BaseModel], tuple[str, Bounds]] = {
    ChatCompletionRequest: ("messages", Bounds(structures=1 << 16, values=1 << 16)),
}
_inputs_adapter = TypeAdapter(list[CaptureInput])

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class FieldError:
    """An error of one field; `path` holds keys and indices from the top of the body."""

    path: tuple[str | int, ...]
    detail: str

    @property
    def pointer(self) -> str:
        """RFC 6901; the empty string is the body as a whole."""
        return "".join("/" + str(p).replace("~", "~0").replace("/", "~1") for p in self.path)

    @property
    def param(self) -> str:
        return ".".join(str(p) for p in self.path)


class InvalidFields(InvalidRequest):
    """Some fields of the request are not valid."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = list(errors)
        first = self.errors[0]
        more = f" (and {len(self.errors) - 1} more)" if len(self.errors) > 1 else ""
        where = f"{first.param}: " if first.param else ""
        super().__init__(f"{where}{first.detail}{more}", param=first.param or None)


def parse_job_spec(body: bytes) -> AnyJobSpec:
    """Read a job spec from JSON.

    Raises:
        InvalidFields: with every field at fault, up to a limit.
        PayloadTooLarge: the body has too many values.
    """
    outlined = outline(body, _JOB_BOUNDS, "inputs")
    try:
        spec = job_spec_adapter.validate_json(outlined.shell)
    except ValidationError as error:
        raise InvalidFields(_job_spec_errors(error, outlined.shell)) from None
    _refuse_nul(outlined.shell)
    if outlined.items > MAX_INPUTS:
        detail = f"List should have at most {MAX_INPUTS} items after validation, not {outlined.items}"
        raise InvalidFields([FieldError(("inputs",), detail)])
    further = [one for first, items in outlined.further_slices() for one in _parse_inputs(items, first)]
    if further and isinstance(spec, CaptureJobSpec):
        spec = spec.model_copy(update={"inputs": [*(spec.inputs or ()), *further]})
    return spec


def _parse_inputs(items: bytes, first: int) -> list[CaptureInput]:
    """Parse one slice of a job's inputs, which begins with number `first`. Raises InvalidFields."""
    try:
        inputs = _inputs_adapter.validate_json(items)
    except ValidationError as error:
        raise InvalidFields([_in_list(one, first) for one in _errors_in(items, error)]) from None
    _refuse_nul(items, first)
    return inputs


def _in_list(error: FieldError, first: int) -> FieldError:
    """Convert an error of a slice to one of the whole body."""
    number, *rest = error.path
    assert isinstance(number, int)
    return FieldError(("inputs", first + number, *rest), error.detail)


def parse_body(kind: type[M], body: bytes) -> M:
    """Read a model of the contract from JSON. Raises what `parse_job_spec` does."""
    long_list, listed = _LISTS.get(kind, (None, None))
    require_bounded(body, _BOUNDS.get(kind, Bounds()), long_list, listed)
    try:
        value = kind.model_validate_json(body)
    except ValidationError as error:
        raise InvalidFields(_errors_in(body, error)) from None
    _refuse_nul(body)
    return value


def _refuse_nul(body: bytes, first: int | None = None) -> None:
    """Refuse NUL, which Postgres and tokenizers cannot process. Raises InvalidFields.

    `first` is the number of the first item if the body is a slice of a job's inputs.
    """
    if b"\\u0000" in body and (path := _find_nul(from_json(body))) is not None:
        error = FieldError(path, "contains a NUL character")
        raise InvalidFields([error if first is None else _in_list(error, first)])


def field_errors(errors: Iterable[Mapping[str, Any]], sent: Any = None) -> list[FieldError]:
    """Merge pydantic's errors per field. `sent` is the body, if there is one."""
    details: dict[tuple[str | int, ...], list[str]] = {}
    for error in errors:
        loc = tuple(error["loc"])
        if error["type"] == "fault_of":
            loc = (*loc, error["ctx"]["field"])
        path = loc if sent is None else _path_in(loc, sent, missing=error["type"] == "missing")
        detail = "unknown field" if error["type"] == "extra_forbidden" else error["msg"]
        detail = detail.removeprefix("Value error, ")
        found = details.setdefault(path, [])
        if detail not in found:
            found.append(detail)
    return [FieldError(path, " or ".join(found)) for path, found in details.items()]


def _errors_in(body: bytes, error: ValidationError, *, skip: int = 0) -> list[FieldError]:
    """Errors of a body, up to a limit. The first `skip` steps of each `loc` are not part of the body."""
    raw = error.errors(include_url=False, include_input=False)
    if raw[0]["type"] == "json_invalid":
        return [FieldError((), raw[0]["msg"])]
    kept = [{**item, "loc": item["loc"][skip:]} for item in raw[: MAX_REPORTED * 10]]
    return field_errors(kept, from_json(body))[:MAX_REPORTED]


def _job_spec_errors(error: ValidationError, body: bytes) -> list[FieldError]:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"].startswith("union_tag"):
        return [FieldError(("kind",), f"kind must be one of {', '.join(JOB_KINDS)}")]
    return _errors_in(body, error, skip=1)  # the job's kind


def _path_in(loc: Sequence[str | int], sent: Any, *, missing: bool) -> tuple[str | int, ...]:
    """The steps of `loc` that exist in `sent`; others are names of union members."""
    path: list[str | int] = []
    here = sent
    for place, step in enumerate(loc):
        is_key = isinstance(here, dict) and step in here
        is_index = isinstance(here, list) and isinstance(step, int) and step < len(here)
        if is_key or is_index:
            here = here[step]
            path.append(step)
        elif missing and place == len(loc) - 1:
            path.append(step)
    return tuple(path)


def _find_nul(value: Any, path: tuple[str | int, ...] = ()) -> tuple[str | int, ...] | None:
    if isinstance(value, str):
        return path if "\0" in value else None
    if isinstance(value, dict):
        for key, item in value.items():
            if "\0" in key:
                return path
            if (found := _find_nul(item, (*path, key))) is not None:
                return found
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if (found := _find_nul(item, (*path, index))) is not None:
                return found
    return None
