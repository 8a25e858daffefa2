"""Who is served: bearers of a key, or, where no keys are set, this machine alone."""

import hmac
import ipaddress
from hashlib import sha256
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from actograph.contract.errors import Unauthorized
from actograph.settings import Settings
from api.errors import actograph_problem

#: probes ask these, and they tell nothing of anyone's work
OPEN_PATHS = frozenset({"/livez", "/readyz", "/health"})


class Authentication:
    """ASGI middleware, so that nobody's body is read before they are known."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in settings.api_keys]
        self._open = OPEN_PATHS | {"/metrics"} if settings.metrics_open else OPEN_PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open:
            try:
                scope.setdefault("state", {})["caller"] = self._admit(scope)
            except Unauthorized as error:
                await actograph_problem(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> str:
        """Who it is, as `caller` says. Raises Unauthorized."""
        headers = Headers(scope=scope)
        if self._digests:
            return self._holder(headers.get("authorization", ""))
        client = scope.get("client")
        if client is None or not is_loopback(client[0]):
            raise Unauthorized(
                "without API keys only clients on the same machine are served; set ACTOGRAPH_API_KEYS"
            )
        # A web page in a local browser must not act through it: neither by a host name that
        # resolves to this machine (DNS rebinding) nor by a request from another site.
        host = headers.get("host", "")
        if not is_loopback(_hostname(f"//{host}")):
            raise Unauthorized("without API keys the service is reached as localhost or 127.0.0.1 only")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise Unauthorized("without API keys pages of other origins are not served")
        return "local"

    def _holder(self, header: str) -> str:
        """Who bears a key that is known. Raises Unauthorized."""
        scheme, _, key = header.partition(" ")
        digest = sha256(key.strip().encode(errors="surrogateescape")).digest()
        # every key is compared, so that the time says nothing about which one was near
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if scheme.lower() != "bearer" or not any(matches):
            raise Unauthorized
        return f"key:{digest.hex()[:8]}"


async def caller(request: Request) -> str:
    """Who asks: `local`, or `key:` with the beginning of the key's digest, which tells keys apart."""
    return str(request.state.caller)


def is_loopback(host: str | None) -> bool:
    """Whether an address, or the name `localhost`, is this machine's own."""
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
