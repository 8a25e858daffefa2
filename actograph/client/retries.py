"""Retry rules and connection settings of both transports."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address

import httpx

from actograph.contract.errors import InvalidRequest

Params = Mapping[str, str | int | float | bool | None]

#: a 429 names the pause in `Retry-After`
RETRY_STATUS = frozenset({429, 502, 503, 504})
#: error code while an earlier request with the same Idempotency-Key is running
IN_FLIGHT = "idempotency_in_flight"
FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 10.0
CONNECT_SECONDS = 5.0


def is_loopback_host(host: str) -> bool:
    """Whether a host name or address belongs to this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def trusts_environment(base_url: str) -> bool:
    """Whether to use the environment's proxies: not for services on loopback.

    Raises:
        InvalidRequest: `base_url` is not a valid URL.
    """
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"{base_url!r} is not a valid URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidRequest(
            f"{base_url!r} is not the URL of a service; use one such as http://127.0.0.1:8420"
        )
    return not is_loopback_host(url.host)


@contextmanager
def environment_at_fault() -> Iterator[None]:
    """Report invalid proxies and certificates of the environment.

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
    """Seconds to wait after `tries` + 1 failures: doubling, with jitter."""
    longest = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0**tries)
    return longest * random.uniform(0.5, 1.0)


def retry_after(response: httpx.Response) -> float:
    """Seconds to wait by the `Retry-After` header, at most LONGEST_DELAY_SECONDS; 0 without the header."""
    try:
        asked = float(response.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return min(max(asked, 0.0), LONGEST_DELAY_SECONDS)


def stated(params: Params | None) -> dict[str, str | int | float | bool]:
    """Parameters without the None values."""
    return {name: value for name, value in (params or {}).items() if value is not None}
