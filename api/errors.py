"""Error answers: RFC 9457 problem details, with OpenAI's `error` beside them.

Unexpected errors are logged, and their answers show nothing internal.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from actograph.contract.base import OpenAIError, Problem, ProblemItem
from actograph.contract.errors import (
    ActographError,
    InvalidRequest,
    NotFound,
    ServiceBusy,
    StorageFull,
    StoreDamaged,
)
from actograph.contract.job_specs import JOB_KINDS
from actograph.redaction import redact
from storage.index import disk_reserve
from storage.index.database import is_full
from storage.queue import pause
from storage.sessions import damage

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
#: the status that nginx logs for a client that disconnected
CLIENT_CLOSED_REQUEST = 499
INTERNAL = "something went wrong inside Actograph; the server's log has the reason"
NO_DATABASE = "the database does not answer; try again in a moment"
NO_CONNECTION = "all connections to the database are in use; try again in a moment"
#: OpenAI's clients expect 400 for every invalid request
OPENAI_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
MAX_REPORTED = 20

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    503: "service_unavailable_error",
    507: "storage_full_error",
}
_HTTP_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    415: "unsupported_media_type",
}


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


def field_errors(errors: Iterable[Mapping[str, Any]], sent: Any = None) -> list[FieldError]:
    """Merge pydantic's errors per field.

    pydantic's `loc` names members of unions beside fields (`dataset.FileDataset.file_id`). With `sent`, the
    body, only steps in the body are kept.
    """
    details: dict[tuple[str | int, ...], list[str]] = {}
    for error in errors:
        loc, detail = tuple(error["loc"]), error["msg"].removeprefix("Value error, ")
        if loc and isinstance(sent, dict) and loc[0] == sent.get("kind"):
            loc = loc[1:]  # the kind of a job stands before its fields
        if error["type"] == "fault_of":
            loc = (*loc, error["ctx"]["field"])
        elif error["type"].startswith("union_tag") and not loc:
            loc, detail = ("kind",), f"kind must be one of {', '.join(JOB_KINDS)}"
        elif error["type"] == "extra_forbidden":
            detail = "unknown field"
        is_missing = error["type"] == "missing" or loc == ("kind",)
        path = loc if sent is None else _path_in(loc, sent, missing=is_missing)
        found = details.setdefault(path, [])
        if detail not in found:
            found.append(detail)
    return [FieldError(path, " or ".join(found)) for path, found in details.items()][:MAX_REPORTED]


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


def problem_of(error: ActographError, instance: str, status: int | None = None) -> JSONResponse:
    """Answer one of our own errors; `status` replaces the error's own."""
    fields = error.errors if isinstance(error, InvalidFields) else []
    if error.param and not fields:
        fields = [FieldError(tuple(error.param.split(".")), error.message)]
    status, detail = status or error.status, redact(error.message)
    problem = Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        instance=redact(instance),
        errors=[ProblemItem(detail=redact(one.detail), pointer=one.pointer) for one in fields],
        error=openai_error(status, detail, code=error.code, param=error.param),
    )
    headers = getattr(error, "headers", None)
    return JSONResponse(problem.model_dump(mode="json"), status, headers, MEDIA_TYPE)


def openai_error(status: int, message: str, *, code: str, param: str | None = None) -> OpenAIError:
    """Build an error in OpenAI's form."""
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return OpenAIError(message=message, type=kind, param=param, code=code)


async def _on_own_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ActographError)
    if error.status >= 500:
        log.error("%s %s: %s", request.method, request.url.path, error.message)
    if isinstance(error, StoreDamaged):
        await run_in_threadpool(damage.record, request.app.state.services.database, error)
    is_openai = request.url.path in OPENAI_PATHS and isinstance(error, InvalidRequest)
    return problem_of(error, request.url.path, 400 if is_openai else None)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    sent = error.body if isinstance(error.body, dict | list) else None
    found = [{**one, "loc": tuple(one["loc"])[1:]} for one in error.errors()[: MAX_REPORTED * 10]]
    return await _on_own_error(request, InvalidFields(field_errors(found, sent)))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    # FastAPI answers 400 to whatever was raised while the body was received
    for kind, handle in _HANDLERS.items():
        if isinstance(error.__cause__, kind):
            return await handle(request, error.__cause__)
    plain = ActographError(str(error.detail))
    if error.status_code == 404 and error.detail == HTTPStatus.NOT_FOUND.phrase:
        plain = NotFound("there is nothing at this address; /openapi.json lists the routes")
    elif error.status_code == 405:
        plain.message = f"{request.method} is not possible here; /openapi.json lists the routes"
    # a class has one code, but HTTP has many
    plain.code = _HTTP_CODES.get(error.status_code, "http_error")  # type: ignore[misc]
    answer = problem_of(plain, request.url.path, error.status_code)
    answer.headers.update(error.headers or {})
    return answer


async def _on_fault(request: Request, error: Exception) -> Response:
    """Answer an error of the disk, of the database, or of the program."""
    where, path = f"{request.method} {request.url.path}", request.url.path
    is_disk_full = isinstance(error, OSError) and error.errno in disk_reserve.FULL
    if is_disk_full or (isinstance(error, DBAPIError) and is_full(error)):
        log.error("%s: no room left: %s", where, error)
        full = f"the disk of the service is full and nothing was stored; {pause.CURE}"
        return problem_of(StorageFull(full), path)
    if isinstance(error, OperationalError | InterfaceError | PoolTimeout):
        log.error("%s: the database failed: %s", where, error)
        return problem_of(ServiceBusy(NO_CONNECTION if isinstance(error, PoolTimeout) else NO_DATABASE), path)
    log.error("%s failed", where, exc_info=error)
    return problem_of(ActographError(INTERNAL), path)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """The client disconnected while sending its body; the service has no fault."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    ActographError: _on_own_error,
    ClientDisconnect: _on_disconnect,
    OSError: _on_fault,
}


def install(app: FastAPI) -> None:
    others = {RequestValidationError: _on_invalid, HTTPException: _on_http_exception}
    faults = dict.fromkeys((OperationalError, InterfaceError, PoolTimeout, Exception), _on_fault)
    for kind, handle in {**_HANDLERS, **others, **faults}.items():
        app.add_exception_handler(kind, handle)


#: how every route documents its errors
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "An error; `detail` says what to do, and `errors` names the fields at fault.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}
