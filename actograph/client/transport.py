"""What both transports share: what may be sent again, and how long to wait before it is."""

import random
from collections.abc import Mapping
from ipaddress import ip_address

import httpx

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
