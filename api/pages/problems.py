"""Errors as pages: a browser gets HTML for an error, or the sign-in page if its key is not valid."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from actograph.contract.errors import ActographError, Conflict
from api.auth import STATIC
from api.pages.rendering import HEADERS, render, see_other

Handler = Callable[[Request, Any], Response | Awaitable[Response]]

#: addresses of programs, whose errors stay problem details
_OF_PROGRAMS = ("/v1/", "/models/", "/openapi.json", "/metrics", "/livez", "/readyz", "/health", STATIC)


def install(app: FastAPI) -> None:
    """Answer the errors of an application as pages where a browser asks for a page."""
    for kind, handler in list(app.exception_handlers.items()):
        app.add_exception_handler(kind, _as_page(handler))


def change_each(change: Callable[[str], object], ids: Sequence[str], kind: str) -> None:
    """Change each of the chosen `jobs` or `sessions`. Raises Conflict with the reasons of those that stay."""
    refused = []
    for one in ids:
        try:
            change(one)
        except ActographError as error:
            refused.append(error.message)
    if refused:
        raise Conflict(f"{len(refused)} of {len(ids)} {kind} stay as they are: {'; '.join(refused)}")


def _as_page(handler: Handler) -> Handler:
    async def handle(request: Request, error: Exception) -> Response:
        answer = handler(request, error)
        if not isinstance(answer, Response):
            answer = await answer
        wants_page = "text/html" in request.headers.get("accept", "") or "hx-request" in request.headers
        if not wants_page or request.url.path.startswith(_OF_PROGRAMS):
            return answer
        if answer.status_code == 401 and request.state.is_keyed:
            return _lead_to_sign_in(request)
        problem: dict[str, Any] = json.loads(bytes(answer.body))
        return render(request, "error.html", {"problem": problem}, status=answer.status_code)

    return handle


def _lead_to_sign_in(request: Request) -> Response:
    """Redirect to the sign-in page, which comes back to this page."""
    if "hx-request" in request.headers:
        # htmx would put the page behind a redirect into this one, but loads its own page again for this
        return Response(status_code=401, headers=HEADERS | {"HX-Refresh": "true"})
    came_from = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.method != "GET" or came_from == "/":
        return see_other("/sign-in")
    return see_other(f"/sign-in?next={quote(came_from, safe='')}")
