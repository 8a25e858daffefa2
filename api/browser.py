"""The API key of a browser: a cookie that scripts cannot read, and the check against other sites.

A browser sends the cookie with requests of other sites too. A request that is signed in by cookie may change
something only if a page of this service made it.
"""

import base64
import binascii
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from actograph.contract.errors import Forbidden

COOKIE = "actograph_key"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def key_of(request: Request) -> str:
    """The key of the browser's cookie, or "".

    Raises:
        Forbidden: the request changes something and does not come from a page of this service.
    """
    value = request.cookies.get(COOKIE, "")
    if value:
        require_same_origin(request)
    try:
        return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode()
    except (binascii.Error, ValueError):
        return ""


def require_same_origin(request: Request) -> None:
    """Raises Forbidden for a change that no page of this service made."""
    if request.method in _SAFE_METHODS:
        return
    # browsers tell it on https and on localhost; elsewhere compare the addresses
    site = request.headers.get("sec-fetch-site")
    origin = urlsplit(request.headers.get("origin", "")).netloc
    if site != "same-origin" and (site or not origin or origin != request.headers.get("host")):
        raise Forbidden("this request does not come from a page of this service; open the page and try again")


def sign_in(answer: Response, key: str, request: Request) -> None:
    """Keep a key in the browser until it is closed. Other services of a proxy do not receive it."""
    value = base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
    # `lax` sends it when a colleague's link is opened, and keeps it from forms of other sites
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, value, path=_path(request), secure=secure, httponly=True, samesite="lax")


def sign_out(answer: Response, request: Request) -> None:
    """Remove the key from the browser."""
    answer.delete_cookie(COOKIE, path=_path(request))


def _path(request: Request) -> str:
    return str(request.scope.get("root_path") or "/")
