"""Error answers: RFC 9457 problem details, with OpenAI's `error` beside them.

Unexpected errors are logged, and their answers show nothing internal.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from actograph.contract.base import OpenAIError, Problem, ProblemItem
from actograph.contract.errors import ActographError, InvalidRequest, ServiceBusy, StorageFull, StoreDamaged
from actograph.contract.job_specs import JOB_KINDS
from actograph.redaction import redact
from storage.index import disk_reserve
from storage.index.database import is_full
from storage.queue import pause
from storage.sessions import damage

log = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)

MEDIA_TYPE = "application/problem+json"
INTERNAL = "something went wrong inside Actograph; the server's log has the reason"
NO_DATABASE = "the database does not answer; try again in a moment"
NO_CONNECTION = "all connections to the database are in use; try again in a moment"
#: OpenAI's clients expect 400 for every invalid request, and 404 for an unknown model
OPENAI_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
MAX_REPORTED = 20
#: how every route documents its errors
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "An error; `detail` says what to do, and `errors` names the fields at fault.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    503: "service_unavailable_error",
    507: "storage_full_error",
}


class FieldError(NamedTuple):
    """An error of one field; `path` holds keys and indices from the top of the body."""

    path: tuple[str | int, ...]
    detail: str

    @property
    def pointer(self) -> str:
        """RFC 6901; the empty string is the body as a whole."""
        return "".join("/" + str(p).replace("~", "~0").replace("/", "~1") for p in self.path)


class InvalidFields(InvalidRequest):
    """Some fields of the request are not valid."""

    def __init__(self, errors: Iterable[Mapping[str, Any]], sent: Any) -> None:
        """`errors` are pydantic's; `sent` is the body."""
        self.errors = field_errors(errors, sent)
        first = self.errors[0]
        param = ".".join(str(step) for step in first.path)
        more = f" (and {len(self.errors) - 1} more)" if len(self.errors) > 1 else ""
        super().__init__(f"{param}: {first.detail}{more}".removeprefix(": "), param=param or None)


def validated(kind: type[M], value: Any) -> M:
    """A model of the contract from JSON that is no request's body. Raises InvalidFields."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise InvalidFields(error.errors(include_url=False), value) from None


def field_errors(errors: Iterable[Mapping[str, Any]], sent: Any = None) -> list[FieldError]:
    """Merge pydantic's errors per field.

    pydantic's `loc` names members of unions beside fields (`dataset.FileDataset.file_id`). If `sent`, the
    body, is a container, only steps in the body are kept.
    """
    details: dict[tuple[str | int, ...], list[str]] = {}
    for error in errors:
        loc, detail = tuple(error["loc"]), error["msg"].removeprefix("Value error, ")
        kind, context = error["type"], error.get("ctx", {})
        if loc and isinstance(sent, dict) and loc[0] == sent.get("kind"):
            loc = loc[1:]  # the kind of a job stands before its fields
        if kind == "json_invalid":
            loc, detail = (), f"Invalid JSON: {context['error']}"
        elif kind == "fault_of":
            loc = (*loc, context["field"])
        elif kind.startswith("union_tag") and not loc:
            loc, detail = ("kind",), f"kind must be one of {', '.join(JOB_KINDS)}"
        elif kind == "extra_forbidden":
            detail = "unknown field"
        if isinstance(sent, dict | list):
            loc = _path_in(loc, sent, missing=kind == "missing" or loc == ("kind",))
        found = details.setdefault(loc, [])
        if detail not in found:
            found.append(detail)
    return [FieldError(path, " or ".join(found)) for path, found in details.items()][:MAX_REPORTED]


def _path_in(loc: Sequence[str | int], sent: Any, *, missing: bool) -> tuple[str | int, ...]:
    """The steps of `loc` that exist in `sent`; others are names of union members."""
    path = []
    for place, step in enumerate(loc):
        is_key = isinstance(sent, dict) and step in sent
        if is_key or (isinstance(sent, list) and isinstance(step, int) and step < len(sent)):
            sent = sent[step]
            path.append(step)
        elif missing and place == len(loc) - 1:
            path.append(step)
    return tuple(path)


def openai_error(error: ActographError, status: int | None = None) -> OpenAIError:
    """An error in OpenAI's form."""
    status = status or error.status
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return OpenAIError(message=redact(error.message), type=kind, param=error.param, code=error.code)


def problem_of(error: ActographError, instance: str) -> JSONResponse:
    """Answer one of our own errors at the path `instance`."""
    fields = error.errors if isinstance(error, InvalidFields) else []
    if error.param and not fields:
        fields = [FieldError(tuple(error.param.split(".")), error.message)]
    status = error.status
    if instance in OPENAI_PATHS and isinstance(error, InvalidRequest):
        status = 404 if error.code == "model_not_found" else 400
    shown = openai_error(error, status)
    problem = Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=shown.message,
        instance=redact(instance),
        errors=[ProblemItem(detail=redact(one.detail), pointer=one.pointer) for one in fields],
        error=shown,
    )
    headers = getattr(error, "headers", None)
    return JSONResponse(problem.model_dump(mode="json"), status, headers, MEDIA_TYPE)


async def _on_own_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ActographError)
    if error.status >= 500:
        log.error("%s %s: %s", request.method, request.url.path, error.message)
    if isinstance(error, StoreDamaged):
        await run_in_threadpool(damage.record, request.app.state.services.database, error)
    return problem_of(error, request.url.path)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    if isinstance(error.body, bytes):
        advice = "send the body as JSON, with Content-Type: application/json"
        return await _on_http_exception(request, HTTPException(415, advice))
    found = [{**one, "loc": tuple(one["loc"])[1:]} for one in error.errors()[: MAX_REPORTED * 10]]
    return problem_of(InvalidFields(found, error.body), request.url.path)


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, ActographError | OSError):
        # the body was too large, or the disk full while it arrived
        handle = _on_own_error if isinstance(error.__cause__, ActographError) else _on_fault
        return await handle(request, error.__cause__)
    detail = str(error.detail)
    if error.status_code in (404, 405):
        detail = f"there is no {request.method} {request.url.path}; /openapi.json lists the routes"
    plain = ActographError(detail)
    # a class has one code and status, but HTTP has many
    plain.status = error.status_code  # type: ignore[misc]
    plain.code = HTTPStatus(plain.status).phrase.lower().replace(" ", "_")  # type: ignore[misc]
    answer = problem_of(plain, request.url.path)
    answer.headers.update(error.headers or {})
    return answer


async def _on_fault(request: Request, error: Exception) -> JSONResponse:
    """Answer an error of the disk, of the database, or of the program."""
    where, answer = f"{request.method} {request.url.path}", ActographError(INTERNAL)
    is_disk_full = isinstance(error, OSError) and error.errno in disk_reserve.FULL
    if is_disk_full or (isinstance(error, DBAPIError) and is_full(error)):
        answer = StorageFull(f"the disk of the service is full and nothing was stored; {pause.CURE}")
    elif isinstance(error, PoolTimeout):
        answer = ServiceBusy(NO_CONNECTION)
    elif isinstance(error, OperationalError | InterfaceError):
        answer = ServiceBusy(NO_DATABASE)
    is_known = answer.message != INTERNAL
    log.error("%s failed: %s", where, error, exc_info=None if is_known else error)
    return problem_of(answer, request.url.path)


def install(app: FastAPI) -> None:
    """Answer every error of an application in one form."""
    app.add_exception_handler(ActographError, _on_own_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http_exception)
    for kind in (OSError, OperationalError, InterfaceError, PoolTimeout, Exception):
        app.add_exception_handler(kind, _on_fault)


def refusal_of(error: Exception) -> str:
    """The reason why a command cannot start, in one line without secrets."""
    reason = str(error)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        reason = f"setting {'.'.join(map(str, first['loc']))}: {first['msg']}"
    elif isinstance(error, SQLAlchemyError):
        reason = f"the database cannot be used: {type(error).__name__}: {error.args[0] if error.args else ''}"
    return redact(" ".join(reason.split()))
