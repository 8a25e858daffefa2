"""Base classes of requests and answers, and the types of fields that many requests have."""

import json
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from types import UnionType
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType
from typing_extensions import override

from actograph.contract.errors import InvalidRequest
from actograph.contract.suggestions import OTHERWISE, did_you_mean
from actograph.tables import describe

MAX_PROMPT_CHARS = 1_000_000
MAX_TAGS = 16
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}$")]
Text = Annotated[str, Field(max_length=MAX_PROMPT_CHARS)]
PromptText = Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARS)]
Tag = Annotated[str, Field(min_length=1, max_length=64)]
FiniteNumber = Annotated[float, Field(allow_inf_nan=False)]
HookName = Annotated[str, Field(min_length=1, max_length=256)]
HookList = Annotated[list[HookName], Field(max_length=10_000)]
ModelName = Annotated[str, Field(min_length=1, max_length=1024)]


def _base_and_adapter(value: Any) -> Any:
    """`{"base": BASE, "adapter": ADAPTER}` is another form of `BASE+ADAPTER`."""
    if not isinstance(value, dict):
        return value
    parts = [part for part in (value.get("base"), value.get("adapter")) if isinstance(part, str) and part]
    if value.keys() != {"base", "adapter"} or len(parts) != 2:
        raise ValueError('a model is a name, or {"base": NAME, "adapter": NAME} with two texts')
    return "+".join(parts)


#: a name, or an object with the names of a base and its adapter
ModelChoice = Annotated[
    ModelName,
    BeforeValidator(
        _base_and_adapter, json_schema_input_type=ModelName | dict[Literal["base", "adapter"], str]
    ),
]
#: ids, or their unique beginnings, which the service completes
FileId = Annotated[str, Field(pattern=r"^file_[0-9a-f]{1,32}$")]
SessionId = Annotated[str, Field(pattern=r"^ses_[0-9a-f]{1,32}$")]
ServerPath = Annotated[str, Field(min_length=1, max_length=4096, description="Path below a data root.")]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]
#: strings that end a generation
Stops = Annotated[list[Stop], Field(max_length=16)]
#: the client's own keys and values
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


#: kinds of errors of pydantic itself
_KNOWN_ERRORS = frozenset(get_args(ErrorType))


class _Exact(BaseModel):
    """Numbers and booleans are sent as such: pydantic would take `"5"` and `true` for a number."""

    #: fields whose numbers may be texts
    loose: ClassVar[Collection[str]] = ()

    @model_validator(mode="wrap")
    @classmethod
    def _as_sent(cls, sent: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            made = handler(sent)
        except ValidationError as error:
            if hinted := _with_hints(cls, error):
                raise hinted from None
            raise
        if isinstance(sent, dict):
            for name, value in sent.items():
                if name in cls.loose:
                    continue
                if fault := _coerced(value, getattr(made, name, None)):
                    raise fault_of(name, fault)
        return made


def _with_hints(model: type[BaseModel], error: ValidationError) -> ValidationError | None:
    """The error with the nearest field for each unknown one of this object; None without unknown ones."""
    found = error.errors(include_url=False)
    if not any(one["type"] == "extra_forbidden" and len(one["loc"]) == 1 for one in found):
        return None
    details = []
    for one in found:
        kind: Any = one["type"]
        if kind == "extra_forbidden" and len(one["loc"]) == 1:
            known = [field.alias or name for name, field in model.model_fields.items()]
            name = str(one["loc"][0])
            near = did_you_mean(name, known)
            meant = OTHERWISE.get(name, name)
            outer = None if meant in known else _outer_field(model, meant)
            hint = near if near.endswith("?") else ""
            if outer is not None:
                hint = f"; it is a field of {outer}" if meant == name else f"; it is {meant!r} of {outer}"
            kind = PydanticCustomError("unknown_field", "unknown field{hint}", {"hint": hint})
        elif kind not in _KNOWN_ERRORS:
            context = {**one.get("ctx", {}), "why": one["msg"]}
            kind = PydanticCustomError(kind, "{why}", context)
        details.append(
            InitErrorDetails(type=kind, loc=one["loc"], input=one["input"], ctx=one.get("ctx", {}))
        )
    return ValidationError.from_exception_data(error.title, details)


def _outer_field(model: type[BaseModel], name: str) -> str | None:
    """The field whose object has a field of this name, such as `capture` for `mode` of a job."""

    def objects(annotation: Any) -> Iterator[type[BaseModel]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield annotation
        elif get_origin(annotation) in (Union, UnionType, Annotated):
            for part in get_args(annotation):
                yield from objects(part)

    for outer, field in model.model_fields.items():
        if any(name in one.model_fields for one in objects(field.annotation)):
            return outer
    return None


def _coerced(sent: Any, made: Any) -> str | None:
    """The reason why a JSON value is not what was made of it."""
    if isinstance(sent, list | dict) and isinstance(made, list | dict) and len(sent) == len(made):
        values = [list(one.values()) if isinstance(one, dict) else one for one in (sent, made)]
        return next(filter(None, map(_coerced, *values)), None)
    if type(made) in (int, float) and isinstance(sent, str | bool):
        return f"{json.dumps(sent)} is not a number; send it as one, without quotes"
    if type(made) is bool and isinstance(sent, str | int) and not isinstance(sent, bool):
        return f"{json.dumps(sent)} is not a boolean; send true or false"
    return None


class Spec(_Exact):
    """Base of all requests. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _finite(value: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError for NaN and infinities, which JSON, and so a database, does not have."""
    json.dumps(value, allow_nan=False)
    return value


#: JSON of a client's own form
JsonObject = Annotated[dict[str, Any], AfterValidator(_finite)]


def example(**fields: Any) -> ConfigDict:
    """The configuration of a request with an example in its schema."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class RequestPart(_Exact):
    """Part of a request in which unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Resource(BaseModel):
    """Base of all answers. `str` describes one: its fields, and a table for each list of objects."""

    model_config = ConfigDict(frozen=True)

    @override
    def __str__(self) -> str:
        return describe(self)


def fault_of(field: str, why: str) -> PydanticCustomError:
    """The error of a check over several fields, reported for one of them."""
    return PydanticCustomError("fault_of", "{why}", {"why": why, "field": field})


def canonical_digest(value: Any) -> str:
    """sha256 (hex) of a JSON value, independent of key order and white space."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


def as_json(value: Any) -> Any:
    """Return a value as JSON has it, at any depth: models as objects, arrays and their scalars as numbers."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return {name: as_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple | range):
        return [as_json(one) for one in value]
    # numpy and torch, which not every user of the contract has installed
    return value.tolist() if hasattr(value, "tolist") else value


def merged(body: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with changes: objects are merged, and a dot in a name leads into a nested one.

    Raises:
        InvalidRequest: a name leads into a value that is not an object.
    """
    found = dict(body)
    for name, value in changes.items():
        *outer, last = name.split(".")
        place = found
        for step in outer:
            nested = place.get(step)
            if not (nested is None or isinstance(nested, Mapping)):
                raise InvalidRequest(f"{name} cannot be set, as {step} is not an object")
            place[step] = dict(nested or {})
            place = place[step]
        place[last] = _united(place.get(last), value)
    return found


def _united(old: Any, new: Any) -> Any:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {**old, **{name: _united(old.get(name), value) for name, value in new.items()}}
    return new


T = TypeVar("T")


class ErrorRecord(Resource):
    """The error of a failed job or sample."""

    type: str
    message: str
    param: str | None = Field(None, description="The field at fault.")
    details: dict[str, int] | None = Field(None, description="Numbers of the error, such as bytes in use.")


class ListPage(Resource, Generic[T]):
    """A page of a list, in OpenAI's shape; `after=<last_id>` requests the next page."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class Deleted(Resource):
    id: str
    object: str
    deleted: bool = True


class ProblemItem(Resource):
    detail: str
    pointer: str = Field(description="JSON pointer to the field at fault.")


class OpenAIError(Resource):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Problem(Resource):
    """RFC 9457 problem details; `error` is the same failure in OpenAI's form."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str | None = None
    errors: list[ProblemItem] = Field([])
    error: OpenAIError
