"""Parse answers of the service, and build paths of requests."""

from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from actograph.client.errors import UnexpectedAnswer
from actograph.contract.errors import InvalidRequest

M = TypeVar("M", bound=BaseModel)


def path_of(base: str, *parts: str) -> str:
    """Join a path; each part is quoted, and `.` and `..` are refused."""
    if any(part in ("", ".", "..") for part in parts):
        raise InvalidRequest(f"{parts!r} is not a valid id or name")
    return "/".join([base, *(quote(part, safe="") for part in parts)])


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise UnexpectedAnswer(
            f"{answer.url} did not answer with JSON; is this an Actograph service?"
        ) from error


def read(form: type[M], answer: httpx.Response) -> M:
    """Parse a JSON answer as a `form`. Raises UnexpectedAnswer."""
    return validate(form, _json(answer))


def validate(form: type[M], value: Any) -> M:
    """Convert a JSON value to a `form`. Raises UnexpectedAnswer."""
    try:
        return form.model_validate(value)
    except ValidationError as error:
        raise unexpected(_name_of(form), error) from error


def read_text(form: type[M], text: str) -> M:
    """Parse JSON text as a `form`. Raises UnexpectedAnswer."""
    try:
        return form.model_validate_json(text)
    except ValidationError as error:
        raise unexpected(_name_of(form), error) from error


def _name_of(form: type[BaseModel]) -> str:
    return form.__name__.partition("[")[0]  # generic models are called ListPage[Any]


def unexpected(what: str, error: ValidationError) -> UnexpectedAnswer:
    """Return the error for an answer that does not match this version of the contract."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"])) or "body"
    return UnexpectedAnswer(
        f"the service's {what} does not match this version of the client ({place}: {first['msg']}); "
        "do client and service have the same version?"
    )
