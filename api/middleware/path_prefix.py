"""The service behind a path prefix, such as a proxy of JupyterHub or Open OnDemand."""

from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class PathPrefix:
    """ASGI middleware that takes the prefix off a request's path, and puts it before redirects.

    Some proxies remove the prefix and others do not, so both are served. The rest of the application knows
    paths without it; `root_path` of the scope has it, for links.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        """`prefix` begins with a slash and does not end with one."""
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if path == self._prefix or path.startswith(f"{self._prefix}/"):
            path = path[len(self._prefix) :] or "/"
        # in place: the answer to an unexpected error is made outside of this call
        scope["path"], scope["raw_path"] = path, quote(path, safe="/:@").encode()
        scope["root_path"] = self._prefix

        async def prefixed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                target = headers.get("location", "")
                if target.startswith("/") and not target.startswith("//"):
                    headers["location"] = self._prefix + target
            await send(message)

        await self._app(scope, receive, prefixed)
