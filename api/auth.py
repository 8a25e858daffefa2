"""Authentication by API key, and roles.

A service without keys serves only clients on the same machine.
"""

import logging
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Security
from fastapi.security import HTTPBearer, SecurityScopes
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from actograph.contract.errors import ActographError, Forbidden, ServiceUnavailable, Unauthorized
from actograph.loopback import is_loopback
from actograph.roles import Role
from actograph.settings import Settings
from api.errors import NO_DATABASE, problem_of
from storage.accounts import api_keys
from storage.index.database import Database

log = logging.getLogger(__name__)

#: probes, open to all; they show no data of owners
OPEN_PATHS = frozenset({"/livez", "/readyz", "/health"})
#: headers of forwarding proxies, beside X-Forwarded-*
_OF_PROXIES = frozenset({"forwarded", "via", "x-real-ip"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Caller of a request, with role and owner."""

    #: owner of the caller's jobs, sessions and files
    owner: str
    role: Role

    @property
    def sees_only(self) -> str | None:
        """Owner whose items are visible; None for all owners."""
        return None if self.role is Role.ADMIN else self.owner


#: the caller of a service without keys
LOCAL = Access(owner="local", role=Role.ADMIN)
#: the caller of an open path, without any data
NOBODY = Access(owner="", role=Role.READ)


class Authentication:
    """ASGI middleware that authenticates before the request body is read.

    Keys are in the settings and in the index, and are looked up by their sha256.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._open = OPEN_PATHS | {"/metrics"} if settings.metrics_open else OPEN_PATHS
        # the supervisor's key does not make the service require keys
        self._has_fixed = bool(settings.api_keys)
        digests = [api_keys.digest_of(key) for key in (*settings.api_keys, settings.supervisor_key) if key]
        self._fixed = {
            digest: Access(owner=api_keys.owner_of_digest(digest), role=Role.ADMIN) for digest in digests
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            access = NOBODY
            try:
                if scope["path"] not in self._open:
                    access = await self._admit(scope)
            except ActographError as error:
                await problem_of(error, scope["path"])(scope, receive, send)
                return
            scope.setdefault("state", {})["access"] = access
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> Access:
        """Identify the caller. Raises Unauthorized, Forbidden or ServiceUnavailable."""
        headers = Headers(scope=scope)
        scheme, _, key = headers.get("authorization", "").partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else ""
        database = scope["app"].state.services.database
        access = await run_in_threadpool(self._find, database, key)
        return access if access is not None else _neighbour(scope, headers)

    def _find(self, database: Database, key: str) -> Access | None:
        """Find the access of a key; None if the service has no keys at all.

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
    host, origin = headers.get("host", ""), headers.get("origin")
    if not is_loopback(_hostname(f"//{host}")):
        raise Unauthorized("without API keys the service is reached as localhost or 127.0.0.1 only")
    if origin is not None and urlsplit(origin).netloc != host:
        raise Unauthorized("without API keys pages of other origins are not served")
    return LOCAL


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


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
    access: Access = request.state.access
    for needed in roles.scopes:
        if not access.role.includes(Role(needed)):
            raise Forbidden(
                f"this needs an API key of the role {needed}; the role of this one is {access.role}"
            )


#: dependencies of routers and routes: the least role that may call them
READ = Security(_require_role, scopes=[Role.READ.value])
SUBMIT = Security(_require_role, scopes=[Role.SUBMIT.value])
ADMIN = Security(_require_role, scopes=[Role.ADMIN.value])


async def caller(request: Request) -> str:
    """Owner of the caller's key: a name, `local`, or `key:` and the start of the key's digest."""
    access: Access = request.state.access
    return access.owner


Caller = Annotated[str, Depends(caller)]
