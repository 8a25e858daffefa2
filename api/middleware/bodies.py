"""Request bodies: their largest size, and no NUL characters."""

import re

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actograph.contract.errors import InvalidRequest, PayloadTooLarge
from actograph.settings import Settings

UPLOAD_PATH = "/v1/files"
#: bytes that multipart encoding adds to a file
MULTIPART_OVERHEAD = 1 << 20
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


def nul_in(text: bytes) -> str | None:
    """Place of a NUL character in JSON text; neither Postgres nor tokenizers can process one."""
    found = _NUL.search(text)
    return f"a NUL character (\\u0000) at byte {found.end()}; remove it" if found else None


async def refuse_nul(request: Request) -> None:
    """Raises InvalidRequest for a NUL character in the path, the query or the body."""
    is_json = "json" in request.headers.get("content-type", "")
    if is_json and (fault := nul_in(await request.body())):
        raise InvalidRequest(f"the body contains {fault}")
    for name, value in [*request.query_params.multi_items(), *request.path_params.items()]:
        if "\0" in name + value:
            raise InvalidRequest("a parameter contains a NUL character", param=name.replace("\0", ""))
