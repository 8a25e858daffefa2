"""Error answers: RFC 9457 problem details, with OpenAI's `error` beside them.

Unexpected errors are logged, and their answers show nothing internal.
"""

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from actograph.contract.base import OpenAIError, Problem, ProblemItem
from actograph.contract.errors import ActographError, InvalidRequest, ServiceBusy, StorageFull, StoreDamaged
from actograph.contract.field_wording import in_words
from actograph.contract.job_specs import MAX_REPORTED, FieldError, InvalidFields
from api.middleware import request_ids
from storage.index import disk_reserve
from storage.index.database import is_full
from storage.queue import pause
from storage.redaction import redact
from storage.sessions import damage

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
INTERNAL = "something went wrong inside Actograph; the server's log has the reason"
NO_DATABASE = "the database does not answer; try again in a moment"
NO_CONNECTION = "all connections to the database are in use; try again in a moment"
#: OpenAI's clients expect 400 for every invalid request, and 404 for an unknown model
OPENAI_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
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
    headers = dict(getattr(error, "headers", None) or {})
    if identifier := request_ids.current.get():
        headers[request_ids.HEADER] = identifier  # an unexpected error passes no middleware of ours
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
    where = f"{request.method} {request.url.path}"
    answer: ActographError | None = None
    is_disk_full = isinstance(error, OSError) and error.errno in disk_reserve.FULL
    if is_disk_full or (isinstance(error, DBAPIError) and is_full(error)):
        answer = StorageFull(f"the disk of the service is full and nothing was stored; {pause.CURE}")
    elif isinstance(error, PoolTimeout):
        answer = ServiceBusy(NO_CONNECTION)
    elif isinstance(error, OperationalError | InterfaceError):
        answer = ServiceBusy(NO_DATABASE)
    log.error("%s failed: %s", where, error, exc_info=None if answer else error)
    unknown = f"{INTERNAL}, in the lines that end with [{request_ids.current.get()}]"
    return problem_of(answer or ActographError(unknown), request.url.path)


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
        reason = f"setting {'.'.join(map(str, first['loc']))}: {in_words([first])}"
    elif isinstance(error, SQLAlchemyError):
        reason = f"the database cannot be used: {type(error).__name__}: {error.args[0] if error.args else ''}"
    return redact(" ".join(reason.split()))
