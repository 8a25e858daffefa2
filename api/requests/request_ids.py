"""An id for every answer, in the header `x-request-id`."""

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
_VALID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


class RequestIds:
    """ASGI middleware that sends back the client's `x-request-id`, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope).get(HEADER, "")
        identifier = asked if _VALID.fullmatch(asked) else f"req_{secrets.token_hex(16)}"

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = identifier
            await send(message)

        await self._app(scope, receive, named)
