"""Retry rules shared by both transports."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address

import httpx

from actograph.contract.errors import InvalidRequest

Params = Mapping[str, str | int | float | bool | None]

#: 429 asks for a pause, which `Retry-After` names
RETRY_STATUS = frozenset({429, 502, 503, 504})
#: a first request with the same Idempotency-Key is still being answered
IN_FLIGHT = "idempotency_in_flight"
FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 10.0
CONNECT_SECONDS = 5.0


def is_loopback_host(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def trusts_environment(base_url: str) -> bool:
    """Whether the environment's proxies are asked: never about this machine's own services.

    Raises:
        InvalidRequest: not the URL of a service.
    """
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"{base_url!r} is no URL of a service: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidRequest(f"{base_url!r} is no URL of a service, such as http://127.0.0.1:8420")
    return not is_loopback_host(url.host)


@contextmanager
def environment_at_fault() -> Iterator[None]:
    """Proxies and certificates of the environment are read when the connection pool is made.

    Raises:
        InvalidRequest: one of them cannot be used.
    """
    try:
        yield
    except (ImportError, ValueError, OSError) as error:
        raise InvalidRequest(
            f"the environment's proxy or certificates (ALL_PROXY, SSL_CERT_FILE, ...): {error}"
        ) from error


def backoff(tries: int) -> float:
    """Seconds to wait after `tries` + 1 failures: doubling, with jitter so that clients spread."""
    longest = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0**tries)
    return longest * random.uniform(0.5, 1.0)


def retry_after(response: httpx.Response) -> float:
    """The pause in seconds that the service asks for, within reason; 0 where it names none."""
    try:
        asked = float(response.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return min(max(asked, 0.0), LONGEST_DELAY_SECONDS)


def stated(params: Params | None) -> dict[str, str | int | float | bool]:
    """The parameters that have a value."""
    return {name: value for name, value in (params or {}).items() if value is not None}
