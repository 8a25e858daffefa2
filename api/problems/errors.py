"""The one family of error answers: RFC 9457 problem details, with OpenAI's `error` beside them.

Whatever fails, the body has the shape of `resources.Problem`, so that one client-side check
reads it. Errors that nobody foresaw are logged and say nothing of the inside.
"""

import logging
from collections.abc import Mapping, Sequence
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

from actograph.contract.errors import (
    ActographError,
    ExportChanged,
    RequestTimeout,
    ServiceUnavailable,
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
#: the status that nginx logs for a client that went away
CLIENT_CLOSED_REQUEST = 499

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
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


def problem_response(
    status: int,
    detail: str,
    *,
    code: str,
    instance: str,
    param: str | None = None,
    items: Sequence[ProblemItem] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """An error answer. Without `items`, `param` (`sampling.max_tokens`) gives the JSON pointer."""
    problem = _problem(status, redact(detail), code=code, instance=redact(instance), param=param, items=items)
    sent = dict(headers or {})
    if status == 401:
        sent.setdefault("WWW-Authenticate", "Bearer")
    return JSONResponse(problem.model_dump(mode="json"), status, sent, MEDIA_TYPE)


def _problem(
    status: int,
    detail: str,
    *,
    code: str,
    instance: str,
    param: str | None = None,
    items: Sequence[ProblemItem] | None = None,
) -> Problem:
    if items is None:
        items = [ProblemItem(detail=detail, pointer=pointer_of(param))] if param else []
    return Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        instance=instance,
        errors=list(items),
        error=openai_error(status, detail, code=code, param=param),
    )


def openai_error(status: int, message: str, *, code: str, param: str | None = None) -> OpenAIError:
    """A failure in OpenAI's form."""
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return OpenAIError(message=message, type=kind, param=param, code=code)


def pointer_of(param: str) -> str:
    """`/sampling/max_tokens` for `sampling.max_tokens`."""
    return "/" + param.replace("~", "~0").replace("/", "~1").replace(".", "/")


def actograph_problem(error: ActographError, instance: str, status: int | None = None) -> JSONResponse:
    """The answer to one of our own errors; `status` where it is another than the error's own."""
    items = None
    if isinstance(error, InvalidFields):
        items = [ProblemItem(detail=e.detail, pointer=e.pointer) for e in error.errors]
    return problem_response(
        status or error.status,
        error.message,
        code=error.code,
        instance=instance,
        param=error.param,
        items=items,
        headers=getattr(error, "headers", None),
    )


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
    """Parameters and forms, which FastAPI itself checks."""
    assert isinstance(error, RequestValidationError)
    found = field_errors([{**e, "loc": tuple(e["loc"])[1:]} for e in error.errors()])
    return actograph_problem(InvalidFields(found), request.url.path)


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in disk_reserve.FULL:
        return _full(request, cause)  # an upload is written to the temporary folder first
    detail = str(error.detail)
    if error.status_code == 404 and detail == HTTPStatus.NOT_FOUND.phrase:
        detail = "there is nothing at this address; /openapi.json lists what there is"
    elif error.status_code == 405:
        detail = f"{request.method} is not possible here; /openapi.json lists what is"
    return problem_response(
        error.status_code,
        detail,
        code=_HTTP_CODES.get(error.status_code, "http_error"),
        instance=request.url.path,
        headers=error.headers,
    )


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
    away = ServiceUnavailable("the database does not answer; try again in a moment")
    return problem_response(
        away.status, away.message, code=away.code, instance=request.url.path, headers={"Retry-After": "5"}
    )


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """The client went away in the middle of its body: its own affair, and no fault of the service."""
    log.debug("%s %s: the client went away before its body was complete", request.method, request.url.path)
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_exhausted_pool(request: Request, error: Exception) -> JSONResponse:
    log.warning(
        "%s %s: all connections to the database are in use: %s", request.method, request.url.path, error
    )
    busy = ServiceUnavailable("all connections to the database are in use; try again in a moment")
    return problem_response(
        busy.status, busy.message, code=busy.code, instance=request.url.path, headers={"Retry-After": "2"}
    )


async def _on_unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem_response(
        500,
        "something went wrong inside Actograph; the server's log has the reason",
        code=ActographError.code,
        instance=request.url.path,
    )


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


_MEANINGS = {
    400: "The request cannot be read.",
    401: "A valid API key is required.",
    403: "The API key's role does not allow this.",
    404: "There is no such resource.",
    408: "The request body came too slowly.",
    409: "The resource's state does not allow this.",
    412: "What `If-Match` names is not as it was.",
    413: "The request body is too large.",
    415: "The body is not of the expected media type.",
    416: "The range lies outside the tensor or file.",
    422: "The request is not valid; `errors` names the fields.",
    429: "Too many requests with this API key; `Retry-After` says when to come back.",
    500: "Something went wrong inside Actograph.",
    503: "A service that this request needs cannot be reached.",
    504: "The request was not answered in time.",
    507: "There is no room left to store this; `detail` says what to do.",
}


#: what an answer of a status says for example: code, message, and the parameter at fault
_SAMPLES: Mapping[int, tuple[str, str, str | None]] = {
    400: ("invalid_request", "max_tokens: Input should be greater than or equal to 1", "max_tokens"),
    401: ("unauthorized", Unauthorized().message, None),
    403: ("forbidden", "this needs an API key of the role submit; the role of this one is read", None),
    404: ("not_found", "no job has this id; ids look like job_<32 hex digits>", None),
    408: (RequestTimeout.code, RequestTimeout().message, None),
    409: ("conflict", "the job has ended already", None),
    412: (ExportChanged.code, ExportChanged().message, None),
    413: (
        "payload_too_large",
        "the request body is larger than 33554432 bytes (ACTOGRAPH_MAX_BODY_BYTES)",
        None,
    ),
    415: ("unsupported_media_type", "send the body as JSON, with Content-Type: application/json", None),
    416: ("range_not_satisfiable", "rows 90:100: the tensor has rows 0:42", "rows"),
    422: ("invalid_request", "sampling.max_tokens: Input should be a valid integer", "sampling.max_tokens"),
    429: (
        "rate_limit_exceeded",
        "this API key may send 600 requests per minute; repeat this one in 2 s",
        None,
    ),
    500: ("internal_error", "something went wrong inside Actograph; the server's log has the reason", None),
    503: ("service_unavailable", "the database does not answer; try again in a moment", None),
    507: ("storage_full", f"the disk of the service is full; {pause.CURE}", None),
    504: ("deadline_exceeded", "the request was not answered in time", None),
}
_HEADERS: Mapping[int, Mapping[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "`Bearer`.", "required": True, "schema": {"type": "string"}}},
    429: {
        "Retry-After": {
            "description": "Seconds until it is worth asking.",
            "required": True,
            "schema": {"type": "integer"},
        }
    },
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for error answers, for a route's `responses`."""
    return {status: _documented(status) for status in statuses}


def _documented(status: int) -> dict[str, Any]:
    code, message, param = _SAMPLES[status]
    content = {
        "schema": {"$ref": "#/components/schemas/Problem"},
        "example": _problem(status, message, code=code, instance="/v1/jobs", param=param).model_dump(),
    }
    entry: dict[str, Any] = {"description": _MEANINGS[status], "content": {MEDIA_TYPE: content}}
    return entry | ({"headers": dict(_HEADERS[status])} if status in _HEADERS else {})
