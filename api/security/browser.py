"""Sign-in of browsers: the API key in a cookie that no script can read.

A cookie also travels with requests that a page of another site or port makes. So a request that is signed in
by cookie may change something only if its `Origin` is this service.
"""

import base64
import binascii
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response

from actograph.contract.errors import Forbidden

COOKIE = "actograph_key"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def key_of(headers: Headers) -> str:
    """The API key of the browser's cookie; "" without one."""
    for header in headers.getlist("cookie"):
        try:
            found = SimpleCookie(header).get(COOKIE)
        except CookieError:
            continue
        if found is not None:
            return _decoded(found.value)
    return ""


def require_same_origin(method: str, headers: Headers) -> None:
    """Raises Forbidden for a change that a page of another origin requests."""
    if method in _SAFE_METHODS:
        return
    origin = headers.get("origin", "")
    if not origin or urlsplit(origin).netloc != headers.get("host", ""):
        raise Forbidden("this request does not come from a page of this service; open the page and try again")


def sign_in(answer: Response, key: str, *, secure: bool) -> None:
    """Store a key in the browser until it is closed."""
    value = base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
    answer.set_cookie(COOKIE, value, path="/", secure=secure, httponly=True, samesite="strict")


def sign_out(answer: Response) -> None:
    """Remove the key from the browser."""
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")


def _decoded(value: str) -> str:
    try:
        return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode()
    except (binascii.Error, ValueError):
        return ""
