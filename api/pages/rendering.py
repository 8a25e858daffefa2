"""Pages from Jinja templates: navigation, filters and the headers of every page.

Templates escape all values. Nothing is inline, neither script nor style, so the content security policy of
every page allows files of this service only.
"""

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from actograph import __version__
from actograph.contract.service.key_roles import Role
from api.security.key_ring import Access

HERE = Path(__file__).parent
#: headers of every page. A referrer within this site keeps `Origin` on forms, which the sign-in checks
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
#: (address, name, least role) of each page in the navigation
NAVIGATION: list[tuple[str, str, Role]] = [
    ("/", "Overview", Role.READ),
    ("/jobs", "Jobs", Role.READ),
    ("/submit", "Submit", Role.SUBMIT),
    ("/sessions", "Sessions", Role.READ),
    ("/analyses", "Analyses", Role.READ),
    ("/models", "Models", Role.READ),
    ("/workers", "Workers", Role.ADMIN),
    ("/storage", "Storage", Role.READ),
    ("/keys", "Keys", Role.ADMIN),
]
#: longest text in a page before "show all"
SHORT_TEXT = 20_000


def size(count: float | None) -> str:
    """A number of bytes in words, such as `1.5 GiB`; a dash for None."""
    if count is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def moment(seconds: float | None) -> str:
    """A time in UTC, such as `2026-11-23 20:09:03`; a dash for None."""
    if seconds is None:
        return "–"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float | None) -> str:
    """A duration in words, such as `2 h 5 min`; a dash for None."""
    if seconds is None:
        return "–"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def ago(seconds: float | None) -> str:
    """The age of a time, such as `5 min 3 s ago`; a dash for None."""
    return "–" if seconds is None else f"{duration(time.time() - seconds)} ago"


def percent(value: float | None) -> str:
    """A share of 1, such as `42.5 %`; a dash for None."""
    return "–" if value is None else f"{value * 100:.1f} %"


def number(value: float | None) -> str:
    """A number with separators; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def pretty(value: Any) -> str:
    """JSON with an indent."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def short_id(text: str) -> str:
    """An id without most of its digits."""
    prefix, _, digits = text.partition("_")
    return f"{prefix}_{digits[:8]}" if digits else text[:12]


def address(path: str, **query: Any) -> str:
    """The address of a page. Values of None and "" are left out."""
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
    filters = (size, moment, duration, ago, percent, number, pretty, short_id)
    made.filters.update({one.__name__: one for one in filters})
    made.globals.update(address=address, version=__version__, short_text=SHORT_TEXT)
    return made


ENVIRONMENT = _environment()


def render(
    request: Request, template: str, values: Mapping[str, Any] | None = None, *, status: int = 200
) -> HTMLResponse:
    """Render a page for the caller.

    Args:
        template: a file in `templates/`.
        values: variables of the template, beside those of `_of_caller`.
    """
    content = ENVIRONMENT.get_template(template).render(_of_caller(request) | dict(values or {}))
    return HTMLResponse(content, status, HEADERS)


def see_other(path: str) -> Response:
    """Lead the browser to a page after a form."""
    return RedirectResponse(path, 303, HEADERS)


def _of_caller(request: Request) -> dict[str, Any]:
    """Variables of every template: the caller, the permitted pages and the current address."""
    access: Access | None = getattr(request.state, "access", None)
    # an open path, or an error before sign-in: nothing of any owner
    is_known = access is not None and bool(access.owner)
    role = access.role if access is not None and is_known else None
    ring = getattr(request.app.state, "key_ring", None)
    return {
        "here": request.url.path,
        "query": dict(request.query_params),
        "owner": access.owner if access is not None else "",
        "is_known": is_known,
        "is_keyed": ring is not None and ring.is_needed,
        "navigation": [
            (path, name) for path, name, least in NAVIGATION if role is not None and role.includes(least)
        ],
        "may_submit": role is not None and role.includes(Role.SUBMIT),
        "may_admin": role is Role.ADMIN,
        "now": time.time(),
    }
