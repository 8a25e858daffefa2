"""An id for every request: in the header `x-request-id` of its answer, and in its log lines."""

import logging
import re
import secrets
from contextvars import ContextVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
_SAFE = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
#: id of the current request; "" outside of requests
current: ContextVar[str] = ContextVar("request_id", default="")


class RequestIds:
    """ASGI middleware that gives a request the `x-request-id` of its client, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope).get(HEADER, "")
        identifier = asked if _SAFE.fullmatch(asked) else f"req_{secrets.token_hex(16)}"
        # not reset: the access log is written, and an unexpected error answered, outside of this call
        current.set(identifier)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = identifier
            await send(message)

        await self._app(scope, receive, named)


class _Naming(logging.Filter):
    """Adds the id of the request to its log lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        identifier = current.get()
        if identifier and not hasattr(record, "request_id"):
            record.request_id = identifier
            record.msg = f"{record.msg} [{identifier}]"
        return True


def name_in_logs() -> None:
    """Let the log lines of this process end with the id of their request."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_Naming())
