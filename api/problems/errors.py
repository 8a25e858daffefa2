"""Error answers: RFC 9457 problem details, with OpenAI's `error` beside them.

Every error has the form of `resources.Problem`. Unexpected errors are logged, and their answers show nothing
internal.
"""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from actograph.contract.errors import (
    ActographError,
    ExportChanged,
    RequestTimeout,
    ServiceBusy,
    StorageFull,
    StoreDamaged,
    Unauthorized,
)
from actograph.contract.resources import OpenAIError, Problem, ProblemItem
from actograph.redaction import redact
from api.problems.validation import InvalidFields, field_errors
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
    413: "payload_too_large",
    415: "unsupported_media_type",
}


def _problem(
    status: int,
    detail: str,
    *,
    code: str,
    instance: str,
    param: str | None = None,
    items: Sequence[ProblemItem] | None = None,
) -> Problem:
    """Build problem details. Without `items`, `param` (`sampling.max_tokens`) gives the JSON pointer."""
    detail = redact(detail)
    if items is None:
        items = [ProblemItem(detail=detail, pointer=pointer_of(param))] if param else []
    return Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        instance=redact(instance),
        errors=list(items),
        error=openai_error(status, detail, code=code, param=param),
    )


def _answer(problem: Problem, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(problem.model_dump(mode="json"), problem.status, headers, MEDIA_TYPE)


def openai_error(status: int, message: str, *, code: str, param: str | None = None) -> OpenAIError:
    """Build an error in OpenAI's form."""
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return OpenAIError(message=message, type=kind, param=param, code=code)


def pointer_of(param: str) -> str:
    """Convert `sampling.max_tokens` to `/sampling/max_tokens`."""
    return "/" + param.replace("~", "~0").replace("/", "~1").replace(".", "/")


def actograph_problem(error: ActographError, instance: str, status: int | None = None) -> JSONResponse:
    """Answer one of our own errors; `status` replaces the error's own."""
    items = None
    if isinstance(error, InvalidFields):
        items = [ProblemItem(detail=e.detail, pointer=e.pointer) for e in error.errors]
    problem = _problem(
        status or error.status,
        error.message,
        code=error.code,
        instance=instance,
        param=error.param,
        items=items,
    )
    return _answer(problem, getattr(error, "headers", None))


async def _on_actograph_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ActographError)
    if error.status >= 500:
        log.error("%s %s: %s", request.method, request.url.path, error.message)
    return actograph_problem(error, request.url.path)


async def _on_damage(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StoreDamaged)
    await run_in_threadpool(damage.record, request.app.state.services.database, error)
    return await _on_actograph_error(request, error)


async def _on_validation_error(request: Request, error: Exception) -> JSONResponse:
    """Answer for parameters and forms, which FastAPI checks."""
    assert isinstance(error, RequestValidationError)
    found = field_errors([{**e, "loc": tuple(e["loc"])[1:]} for e in error.errors()])
    return actograph_problem(InvalidFields(found), request.url.path)


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in disk_reserve.FULL:
        return _full(request, cause)  # uploads go to the temporary folder first
    detail = str(error.detail)
    if error.status_code == 404 and detail == HTTPStatus.NOT_FOUND.phrase:
        detail = "there is nothing at this address; /openapi.json lists the routes"
    elif error.status_code == 405:
        detail = f"{request.method} is not possible here; /openapi.json lists the routes"
    code = _HTTP_CODES.get(error.status_code, "http_error")
    problem = _problem(error.status_code, detail, code=code, instance=request.url.path)
    return _answer(problem, error.headers)


def _full(request: Request, error: BaseException) -> JSONResponse:
    log.error("%s %s: no room left: %s", request.method, request.url.path, error)
    full = StorageFull(f"the disk of the service is full and nothing was stored; {pause.CURE}")
    return actograph_problem(full, request.url.path)


async def _on_os_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, OSError)
    if error.errno in disk_reserve.FULL:
        return _full(request, error)
    return await _on_unexpected(request, error)


async def _on_database_error(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, DBAPIError) and is_full(error):
        return _full(request, error)
    log.error("%s %s: the database failed: %s", request.method, request.url.path, error)
    return actograph_problem(ServiceBusy(NO_DATABASE), request.url.path)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """The client disconnected while sending its body; the service has no fault."""
    log.debug("%s %s: the client disconnected before its body was complete", request.method, request.url.path)
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_exhausted_pool(request: Request, error: Exception) -> JSONResponse:
    log.warning(
        "%s %s: all connections to the database are in use: %s", request.method, request.url.path, error
    )
    detail = "all connections to the database are in use; try again in a moment"
    return actograph_problem(ServiceBusy(detail), request.url.path)


async def _on_unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return actograph_problem(ActographError(INTERNAL), request.url.path)


def install(app: FastAPI) -> None:
    app.add_exception_handler(ActographError, _on_actograph_error)
    app.add_exception_handler(StoreDamaged, _on_damage)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    for kind in (OperationalError, InterfaceError):
        app.add_exception_handler(kind, _on_database_error)
    app.add_exception_handler(PoolTimeout, _on_exhausted_pool)
    app.add_exception_handler(OSError, _on_os_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_unexpected)


class _Example(NamedTuple):
    """An error answer in the OpenAPI document: its meaning, and an example."""

    meaning: str
    code: str
    message: str
    param: str | None = None


_EXAMPLES: Mapping[int, _Example] = {
    400: _Example(
        "The request cannot be read.",
        "invalid_request",
        "max_tokens: Input should be greater than or equal to 1",
        "max_tokens",
    ),
    401: _Example("A valid API key is required.", "unauthorized", Unauthorized().message),
    403: _Example(
        "The API key's role does not allow this.",
        "forbidden",
        "this needs an API key of the role submit; the role of this one is read",
    ),
    404: _Example(
        "There is no such resource.", "not_found", "no job has this id; ids look like job_<32 hex digits>"
    ),
    408: _Example("The request body arrived too slowly.", RequestTimeout.code, RequestTimeout().message),
    409: _Example("The resource's state does not allow this.", "conflict", "the job has ended already"),
    412: _Example("The resource has changed since `If-Match`.", ExportChanged.code, ExportChanged().message),
    413: _Example(
        "The request body is too large.",
        "payload_too_large",
        "the request body is larger than 33554432 bytes (ACTOGRAPH_MAX_BODY_BYTES)",
    ),
    415: _Example(
        "The body does not have the expected media type.",
        "unsupported_media_type",
        "send the body as JSON, with Content-Type: application/json",
    ),
    416: _Example(
        "The range lies outside the tensor or file.",
        "range_not_satisfiable",
        "rows 90:100: the tensor has rows 0:42",
        "rows",
    ),
    422: _Example(
        "The request is not valid; `errors` names the fields.",
        "invalid_request",
        "sampling.max_tokens: Input should be a valid integer",
        "sampling.max_tokens",
    ),
    500: _Example("An internal error.", "internal_error", INTERNAL),
    503: _Example("A required service cannot be reached.", "service_unavailable", NO_DATABASE),
    504: _Example(
        "The request was not answered in time.", "deadline_exceeded", "the request was not answered in time"
    ),
    507: _Example(
        "There is no space left; `detail` says what to do.",
        "storage_full",
        f"the disk of the service is full; {pause.CURE}",
    ),
}
_HEADERS: Mapping[int, Mapping[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "`Bearer`.", "required": True, "schema": {"type": "string"}}},
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for error answers, for a route's `responses`."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        meaning, code, message, param = _EXAMPLES[status]
        problem = _problem(status, message, code=code, instance="/v1/jobs", param=param)
        schema = {"$ref": "#/components/schemas/Problem"}
        content = {MEDIA_TYPE: {"schema": schema, "example": problem.model_dump()}}
        headers = {"headers": dict(_HEADERS[status])} if status in _HEADERS else {}
        found[status] = {"description": meaning, "content": content, **headers}
    return found
