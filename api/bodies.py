"""Request bodies: their largest size, and JSON that can be stored. Threads for long requests."""

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from anyio import to_thread
from fastapi import HTTPException, Request, Response
from fastapi.params import Form
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actograph.contract.errors import PayloadTooLarge
from actograph.settings import Settings
from api.errors import FieldError, InvalidFields, field_errors, problem_of

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

UPLOAD_PATH = "/v1/files"
#: bytes that multipart encoding adds to a file
MULTIPART_OVERHEAD = 1 << 20


class BodyLimit:
    """ASGI middleware that refuses a body above the limit, with and without a Content-Length."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        settings, is_upload = self._settings, scope["path"] == UPLOAD_PATH
        name, most = "MAX_BODY_BYTES", settings.max_body_bytes
        if is_upload:
            name, most = "MAX_UPLOAD_BYTES", settings.max_upload_bytes
        too_large = PayloadTooLarge(f"the request body is larger than {most} bytes (ACTOGRAPH_{name})")
        most += MULTIPART_OVERHEAD if is_upload else 0
        declared = Headers(scope=scope).get("content-length", "")
        size = int(declared) if declared.isdecimal() and declared.isascii() else 0
        if size > most:
            await problem_of(too_large, scope["path"])(scope, receive, send)
            return
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise too_large
            return message

        await self._app(scope, limited, send)


class JsonRoute(APIRoute):
    """A route that reads JSON by pydantic's parser, which refuses text and numbers that nobody can store."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        takes_json = self.body_field is not None and not isinstance(self.body_field.field_info, Form)

        async def handle_json(request: Request) -> Response:
            headers = request.headers
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
            if takes_json and has_body and kind != "application/json":
                raise HTTPException(415, "send the body as JSON, with Content-Type: application/json")
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json


class _JsonRequest(Request):
    async def json(self) -> Any:
        return read_json(await self.body())


def read_json(body: bytes) -> Any:
    """Parse JSON.

    Raises:
        InvalidFields: it is no JSON, it is nested too deeply, or it has a number or a text without a
            meaning, such as NaN or a NUL, which Postgres and tokenizers cannot process.
    """
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidFields([FieldError((), f"Invalid JSON: {error}")]) from None
    if b"\\u0000" in body and (path := _find_nul(value)) is not None:
        raise InvalidFields([FieldError(path, "contains a NUL character")])
    return value


def parse_body(kind: type[M], body: bytes) -> M:
    """Read a model of the contract from JSON that was no request's body. Raises InvalidFields."""
    return validate(kind, read_json(body))


def validate(kind: type[M], value: Any) -> M:
    """Check a parsed value. Raises InvalidFields."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise InvalidFields(field_errors(found, value)) from None


def _find_nul(value: Any, path: tuple[str | int, ...] = ()) -> tuple[str | int, ...] | None:
    if isinstance(value, str):
        return path if "\0" in value else None
    if isinstance(value, dict):
        if any("\0" in key for key in value):
            return path
        pairs: Any = value.items()
    else:
        pairs = enumerate(value) if isinstance(value, list) else ()
    return next((found for key, item in pairs if (found := _find_nul(item, (*path, key))) is not None), None)


def slow(endpoint: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Run an endpoint in the few threads of long requests."""

    @wraps(endpoint)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        services: Any = kwargs["services"]
        return await to_thread.run_sync(partial(endpoint, *args, **kwargs), limiter=services.slow_threads)

    return run
