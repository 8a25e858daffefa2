"""Authentication by API key, and roles.

A service without keys serves only clients on the same machine.
"""

import logging
import time
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

import anyio
from fastapi import Depends, Security
from fastapi.security import HTTPBearer, SecurityScopes
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actograph.contract.errors import ActographError, Forbidden, ServiceUnavailable, Unauthorized
from actograph.contract.roles import Role
from actograph.service_urls import is_loopback
from actograph.settings import Settings
from api import browser
from api.errors import NO_DATABASE
from storage.accounts import api_keys
from storage.index.database import Database

log = logging.getLogger(__name__)

#: probes and the sign-in page, open to all; they show no data of owners
OPEN_PATHS = frozenset({"/livez", "/readyz", "/health", "/sign-in", "/sign-out"})
#: content of event streams, and seconds between two checks of the key of a long one
EVENTS, RECHECK_SECONDS = "text/event-stream", 15.0
#: files of the pages
STATIC = "/static/"
#: headers of forwarding proxies
_OF_PROXIES = ("forwarded", "via", "x-real-ip", "x-forwarded-")


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Caller of a request: owner of its jobs, sessions and files, and role."""

    owner: str
    role: Role


class KeyRing:
    """Keys of the settings and of the index, looked up by their sha256."""

    def __init__(self, settings: Settings) -> None:
        # the supervisor's key does not make the service require keys
        self._has_fixed = bool(settings.api_keys)
        digests = [api_keys.digest_of(key) for key in (*settings.api_keys, settings.supervisor_key) if key]
        self._fixed = {
            digest: Access(owner=api_keys.owner_of_digest(digest), role=Role.ADMIN) for digest in digests
        }

    def access_of(self, key: str, database: Database) -> Access | None:
        """Identify the owner of a key; None if the service has no keys at all.

        Raises:
            Unauthorized: the key is missing, unknown, revoked or expired.
            ServiceUnavailable: the database does not answer.
        """
        digest = api_keys.digest_of(key)
        if key and digest in self._fixed:
            return self._fixed[digest]
        try:
            with database.read() as session:
                row = api_keys.valid(session, digest) if key else None
                # a service whose last key was revoked still needs one
                if row is None and not self._has_fixed and not api_keys.exist(session):
                    return None
        except SQLAlchemyError as error:
            log.warning("API keys cannot be read, the database failed: %s", type(error).__name__)
            raise ServiceUnavailable(NO_DATABASE) from error
        if row is None:
            raise Unauthorized
        api_keys.touch(database, row)
        return Access(owner=row.owner, role=Role(row.role))


class Authentication:
    """ASGI middleware that authenticates before the request body is read."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._open = OPEN_PATHS | {"/metrics"} if settings.metrics_open else OPEN_PATHS
        self._ring = KeyRing(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request, access = Request(scope), Access(owner="", role=Role.READ)
            request.state.is_keyed = True
            try:
                if scope["path"] not in self._open and not scope["path"].startswith(STATIC):
                    database = request.app.state.services.database
                    known = await run_in_threadpool(self._ring.access_of, _key_of(request), database)
                    request.state.is_keyed = known is not None
                    access = known or _neighbour(request)
            except ActographError as error:
                handle = request.app.exception_handlers[ActographError]
                answer: Response = await handle(request, error)
                await answer(scope, receive, send)
                return
            request.state.access = access
            if access.owner:
                await self._answered(request, access, receive, send)
                return
        await self._app(scope, receive, send)

    async def _answered(self, request: Request, access: Access, receive: Receive, send: Send) -> None:
        """Answer a request. An event stream ends once its key is revoked or has expired."""
        is_stream, checked_at = False, time.monotonic()

        async def checked(message: Message) -> None:
            nonlocal is_stream, checked_at
            if message["type"] == "http.response.start":
                is_stream = Headers(raw=message["headers"]).get("content-type", "").startswith(EVENTS)
            elif is_stream and time.monotonic() - checked_at >= RECHECK_SECONDS:
                checked_at = time.monotonic()
                if not await run_in_threadpool(self._is_valid, request, access):
                    await send({"type": "http.response.body", "body": b""})
                    stream.cancel()
                    await anyio.lowlevel.checkpoint()
            await send(message)

        with anyio.CancelScope() as stream:
            await self._app(request.scope, receive, checked)

    def _is_valid(self, request: Request, access: Access) -> bool:
        """Whether the caller still has its access. Without a database it stays."""
        try:
            known = self._ring.access_of(_key_of(request), request.app.state.services.database)
            return (known or _neighbour(request)) == access
        except ServiceUnavailable:
            return True
        except ActographError:
            return False


def _key_of(request: Request) -> str:
    """The bearer's key, or a browser's."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else browser.key_of(request)


def _neighbour(request: Request) -> Access:
    """Access of a client on this machine.

    Raises:
        Unauthorized: the client is on another machine, or is a web page of another site.
        Forbidden: a proxy forwarded the request, so the client may be anywhere.
    """
    forwarded = next((name for name in request.headers if name.startswith(_OF_PROXIES)), None)
    if forwarded is not None:
        raise Forbidden(
            f"the request came through a proxy (header {forwarded}), and without API keys only clients on "
            "this machine are served; make a key with `actograph keys create`, or set ACTOGRAPH_API_KEYS"
        )
    if request.client is None or not is_loopback(request.client.host):
        raise Unauthorized(
            "without API keys only clients on the same machine are served; make one with `actograph keys "
            "create` there, or set ACTOGRAPH_API_KEYS"
        )
    # A web page in a local browser must not act through it: neither by a host name that
    # resolves to this machine (DNS rebinding) nor by a request from another site.
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    try:
        is_here = is_loopback(urlsplit(f"//{host}").hostname)
    except ValueError:
        is_here = False
    if not is_here or (origin is not None and urlsplit(origin).netloc != host):
        raise Unauthorized(
            "without API keys the service is reached as localhost or 127.0.0.1 only, and not from pages of "
            "other origins"
        )
    return Access(owner="local", role=Role.ADMIN)


_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="apiKey",
    description="Required if the service has keys; without keys it serves only its own machine. The roles "
    "of a route stand beside it.",
)


async def _require_role(
    request: Request, roles: SecurityScopes, _: Annotated[object, Security(_bearer)]
) -> None:
    """Raises Forbidden if the caller's role is not sufficient."""
    role: Role = request.state.access.role
    for needed in roles.scopes:
        if not role.includes(Role(needed)):
            raise Forbidden(f"this needs an API key of the role {needed}; the role of this one is {role}")


#: dependencies of routers and routes: the least role that may call them
READ = Security(_require_role, scopes=[Role.READ.value])
SUBMIT = Security(_require_role, scopes=[Role.SUBMIT.value])
ADMIN = Security(_require_role, scopes=[Role.ADMIN.value])


async def caller(request: Request) -> str:
    """Owner of the caller's key: a name, `local`, or `key:` and the start of the key's digest."""
    return str(request.state.access.owner)


Caller = Annotated[str, Depends(caller)]
