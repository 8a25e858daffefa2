"""Authentication of requests by API key.

A service without keys serves only clients on the same machine.
"""

import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from actograph.contract.errors import ActographError, Forbidden, Unauthorized
from actograph.contract.service.key_roles import Role
from api.problems.errors import actograph_problem
from api.routing import OPEN_PATHS, rule_of
from api.security.key_ring import Access, KeyRing

#: the caller of a service without keys
LOCAL = Access(owner="local", role=Role.ADMIN)
#: headers of forwarding proxies, beside X-Forwarded-*
_OF_PROXIES = frozenset({"forwarded", "via", "x-real-ip"})
#: the caller of an open path, without any data
NOBODY = Access(owner="", role=Role.READ)


class Authentication:
    """ASGI middleware that authenticates before the request body is read."""

    def __init__(self, app: ASGIApp, ring: KeyRing, *, metrics_open: bool = False) -> None:
        self._app = app
        self._ring = ring
        self._open = OPEN_PATHS | {"/metrics"} if metrics_open else OPEN_PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            access = NOBODY
            try:
                if scope["path"] not in self._open:
                    access = await self._admit(scope)
                    _require_role(access, scope)
            except ActographError as error:
                await actograph_problem(error, scope["path"])(scope, receive, send)
                return
            scope.setdefault("state", {})["access"] = access
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> Access:
        """Identify the caller.

        Raises:
            Unauthorized, Forbidden: the caller has no valid key, and is not on this machine.
            ServiceUnavailable: the database does not answer.
        """
        headers = Headers(scope=scope)
        scheme, _, key = headers.get("authorization", "").partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else ""
        if not self._ring.is_fresh(key):
            await run_in_threadpool(self._ring.refresh, scope["app"].state.services.database, key)
        if not self._ring.is_needed:
            return _neighbour(scope, headers)
        access = self._ring.find(key)
        if access is None:
            raise Unauthorized
        return access


def _neighbour(scope: Scope, headers: Headers) -> Access:
    """Access of a client on this machine.

    Raises:
        Unauthorized: the client is on another machine, or is a web page of another site.
        Forbidden: a proxy forwarded the request, so the client may be anywhere.
    """
    forwarded = next((n for n in headers if n in _OF_PROXIES or n.startswith("x-forwarded-")), None)
    if forwarded is not None:
        raise Forbidden(
            f"the request came through a proxy (header {forwarded}), and without API keys only clients on "
            "this machine are served; make a key with `actograph keys create`, or set ACTOGRAPH_API_KEYS"
        )
    client = scope.get("client")
    if client is None or not is_loopback(client[0]):
        raise Unauthorized(
            "without API keys only clients on the same machine are served; make one with `actograph keys "
            "create` there, or set ACTOGRAPH_API_KEYS"
        )
    # A web page in a local browser must not act through it: neither by a host name that
    # resolves to this machine (DNS rebinding) nor by a request from another site.
    host = headers.get("host", "")
    if not is_loopback(_hostname(f"//{host}")):
        raise Unauthorized("without API keys the service is reached as localhost or 127.0.0.1 only")
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise Unauthorized("without API keys pages of other origins are not served")
    return LOCAL


def _require_role(access: Access, scope: Scope) -> None:
    """Raises Forbidden."""
    if access.role is Role.ADMIN:
        return
    rule = rule_of(scope["method"], scope["path"])
    if rule is not None and not access.role.includes(rule.role):
        raise Forbidden(_refusal(access.role, rule.role))
    scope.setdefault("state", {})["is_listed"] = rule is not None


async def refuse_unlisted(request: Request) -> None:
    """Reserve routes without a role for admins. Raises Forbidden for other callers."""
    access: Access = request.state.access
    if access is not NOBODY and access.role is not Role.ADMIN and not request.state.is_listed:
        raise Forbidden(_refusal(access.role, Role.ADMIN))


def _refusal(role: Role, needed: Role) -> str:
    return f"this needs an API key of the role {needed}; the role of this one is {role}"


async def caller(request: Request) -> str:
    """Owner of the caller's key: a name, `local`, or `key:` and the start of the key's digest."""
    access: Access = request.state.access
    return access.owner


Caller = Annotated[str, Depends(caller)]


def is_loopback(host: str | None) -> bool:
    """True if a host is a loopback address or `localhost`."""
    if not host:
        return False
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
