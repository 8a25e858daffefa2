"""Pages from Jinja templates, with the navigation and headers of every page.

Templates escape all values. No script and no style is inline: the policy allows files of this service only.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from actograph import __version__
from actograph.contract.roles import Role
from actograph.short_texts import age, duration, shorten, size
from actograph.tables import text_of
from api.auth import Access

HERE = Path(__file__).parent
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    # links to other sites carry no address; forms keep their `Origin`, which the sign-in checks
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
#: (address, name, least role) of each page in the navigation
NAVIGATION = [
    ("/", "Overview", Role.READ),
    ("/jobs", "Jobs", Role.READ),
    ("/submit", "Submit", Role.SUBMIT),
    ("/sessions", "Sessions", Role.READ),
    ("/analyses", "Analyses", Role.READ),
    ("/models", "Models", Role.READ),
    ("/vectors", "Vectors", Role.READ),
    ("/storage", "Storage", Role.READ),
    ("/keys", "Keys", Role.ADMIN),
]
NONE = "–"
#: the beginning of a link to this service; no value of a user looks like one, since quotes are escaped
_LINK = re.compile(r'\s(?:href|src|action|formaction|hx-get|hx-post|data-live|data-stream)="(?=/(?!/))')


def moment(seconds: float | None) -> str:
    """A time in UTC, such as `2026-11-23 20:09:03`."""
    return NONE if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def number(value: float | None) -> str:
    """A number with separators; a float has four digits."""
    if value is None:
        return NONE
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def pretty(value: Any) -> str:
    """JSON with an indent."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def address(path: str, **query: Any) -> str:
    """The address of a page; empty values are left out."""
    chosen = {name: value for name, value in query.items() if value not in (None, "")}
    return quote(path, safe="/:@") + (f"?{urlencode(chosen)}" if chosen else "")


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(moment=moment, number=number, pretty=pretty, age=age, shorten=shorten)
    made.filters["cell"] = lambda value: (
        number(value) if value is None or isinstance(value, int | float) else text_of("", value)
    )
    made.filters["size"] = lambda count: NONE if count is None else size(count)
    made.filters["duration"] = lambda seconds: NONE if seconds is None else duration(seconds)
    made.globals.update(address=address, version=__version__)
    return made


_ENVIRONMENT = _environment()


def render(
    request: Request, template: str, values: Mapping[str, Any] | None = None, *, status: int = 200
) -> HTMLResponse:
    """Render a file of `templates/` for the caller."""
    content = _ENVIRONMENT.get_template(template).render(_of_caller(request) | dict(values or {}))
    if prefix := request.scope.get("root_path"):
        content = _LINK.sub(rf"\g<0>{prefix}", content)
    return HTMLResponse(content, status, HEADERS)


def see_other(path: str) -> Response:
    """Lead the browser to a page after a form."""
    return RedirectResponse(path, 303, HEADERS)


def _of_caller(request: Request) -> dict[str, Any]:
    """Values of every template. Nobody is signed in on an open path, or where the sign-in failed."""
    access: Access | None = getattr(request.state, "access", None)
    role = access.role if access is not None and access.owner else None

    def may(least: Role) -> bool:
        return role is not None and role.includes(least)

    return {
        "here": request.url.path,
        "query": dict(request.query_params),
        "owner": access.owner if access is not None else "",
        "is_keyed": getattr(request.state, "is_keyed", False),
        "navigation": [(path, name) for path, name, least in NAVIGATION if may(least)],
        "may_submit": may(Role.SUBMIT),
        "may_admin": may(Role.ADMIN),
    }
