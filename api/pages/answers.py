"""Errors as pages: a browser gets HTML for an error, or the sign-in page if it has no key."""

import json
import logging
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.pages.rendering import HEADERS, render, see_other
from api.problems.errors import INTERNAL, MEDIA_TYPE

log = logging.getLogger(__name__)

#: addresses of programs, whose errors stay problem details
_OF_PROGRAMS = (
    "/v1/",
    "/models/load",
    "/openapi.json",
    "/metrics",
    "/livez",
    "/readyz",
    "/health",
    "/static/",
)


class PageErrors:
    """ASGI middleware that turns problem details into pages, for browsers that ask for a page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _wants_page(scope):
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        is_passed_on = False
        body = b""

        async def held(message: Message) -> None:
            nonlocal start, is_passed_on, body
            if is_passed_on:
                await send(message)
            elif message["type"] == "http.response.start":
                if Headers(raw=message["headers"]).get("content-type", "").startswith(MEDIA_TYPE):
                    start = message
                else:
                    is_passed_on = True
                    await send(message)
            elif message["type"] == "http.response.body":
                body += message.get("body", b"")

        try:
            await self._app(scope, receive, held)
        except Exception:
            if is_passed_on:
                raise
            log.exception("%s %s failed", scope["method"], scope["path"])
            start, body = {"status": 500, "headers": []}, b""
        if start is not None:
            answer = _page(scope, start["status"], body)
            if retry := Headers(raw=start["headers"]).get("retry-after"):
                answer.headers["Retry-After"] = retry
            await answer(scope, receive, send)


def _wants_page(scope: Scope) -> bool:
    path = scope["path"]
    if path == "/v1" or any(path.startswith(beginning) for beginning in _OF_PROGRAMS):
        return False
    return "text/html" in Headers(scope=scope).get("accept", "")


def _page(scope: Scope, status: int, body: bytes) -> Response:
    problem: dict[str, Any] = json.loads(body) if body else {}
    request = Request(scope)
    if status == 401 and request.app.state.key_ring.is_needed:
        return _lead_to_sign_in(request)
    values = {
        "status": status,
        "title": problem.get("title", "Error"),
        "detail": problem.get("detail", INTERNAL),
    }
    return render(request, "error.html", values, status=status)


def _lead_to_sign_in(request: Request) -> Response:
    """Redirect to the sign-in page, which comes back to this one after a GET."""
    came_from = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    is_part = "hx-request" in request.headers
    target = "/sign-in"
    if request.method == "GET" and not is_part and came_from != "/":
        target += f"?next={quote(came_from, safe='')}"
    if is_part:  # htmx follows this header, and would put a redirect's answer into the page
        return Response(status_code=401, headers={**HEADERS, "HX-Redirect": target})
    return see_other(target)
