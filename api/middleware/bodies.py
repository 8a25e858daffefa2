"""Request bodies: their largest size, and no NUL characters."""

import re
from typing import Any

import anyio
from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actograph.contract.errors import InvalidRequest, PayloadTooLarge
from actograph.settings import Settings

UPLOAD_PATH = "/v1/files"
#: bytes that multipart encoding adds to a file
MULTIPART_OVERHEAD = 1 << 20
#: longest time for which the rest of a refused body is read
DRAIN_SECONDS = 10.0
#: an escaped NUL of JSON; behind an escaped backslash it is text
_NUL = re.compile(rb"(?<!\\)(\\\\)*\\u0000")


class BodyLimit:
    """ASGI middleware that refuses a body above the limit, with and without a Content-Length."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        most, name = self._settings.max_body_bytes, "MAX_BODY_BYTES"
        if scope.get("path") == UPLOAD_PATH:
            most, name = self._settings.max_upload_bytes + MULTIPART_OVERHEAD, "MAX_UPLOAD_BYTES"
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if max(received, int(Headers(scope=scope).get("content-length", 0))) > most:
                raise PayloadTooLarge(f"the request body is larger than {most} bytes (ACTOGRAPH_{name})")
            return message

        await self._app(scope, limited if scope["type"] == "http" else receive, send)


class BodyDrain:
    """ASGI middleware that reads the rest of a body after an early answer, for a moment, as proxies do.

    A client that sends its whole body before it reads would find a reset connection in place of the answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        # a client that waits for leave to send its body has not begun
        is_read = not has_body or "expect" in headers

        async def counted() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = is_read or not message.get("more_body", False)
            return message

        async def answer(message: Message) -> None:
            if is_read or message["type"] != "http.response.body" or message.get("more_body", False):
                await send(message)
                return
            # the server reads nothing after the end of an answer
            await send({**message, "more_body": True})
            with anyio.move_on_after(DRAIN_SECONDS):
                while not is_read:
                    await counted()
            await send({"type": "http.response.body", "body": b""})

        await self._app(scope, counted, answer)


def nul_in(text: bytes) -> str | None:
    """Place of a NUL character in JSON text; neither Postgres nor tokenizers can process one."""
    found = _NUL.search(text)
    return f"a NUL character (\\u0000) at byte {found.end()}; remove it" if found else None


async def refuse_nul(request: Request) -> None:
    """Raises InvalidRequest for a NUL character in the path, the query, a page's form or a JSON body."""
    is_json = "json" in request.headers.get("content-type", "")
    if is_json and (fault := nul_in(await request.body())):
        raise InvalidRequest(f"the body contains {fault}")
    given: list[tuple[str, Any]] = [*request.query_params.multi_items(), *request.path_params.items()]
    if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        given += (await request.form()).multi_items()
    for name, value in given:
        if "\0" in name + str(value):
            raise InvalidRequest("a parameter contains a NUL character", param=name.replace("\0", ""))
