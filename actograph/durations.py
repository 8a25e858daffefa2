"""Durations as text: `12h`, `3m20s`."""

import re

from actograph.contract.errors import InvalidRequest

NEVER = "never"
_SPAN = re.compile(r"([1-9]\d{0,8})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(text: str, option: str) -> int:
    """Return the seconds of `90s`, `30m`, `12h` or `7d`.

    Raises:
        InvalidRequest: `text` is not a duration; the message names `option`.
    """
    match = _SPAN.fullmatch(text.strip().lower())
    if match is None:
        raise InvalidRequest(f"{option}: {text!r} is not a duration; use 90s, 30m, 12h or 7d")
    return int(match[1]) * _SECONDS[match[2]]


def duration(seconds: float) -> str:
    """Return the two largest units, such as `3m20s`."""
    left = max(0, round(seconds))
    for name, length, rest_name, rest in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if left >= length:
            return f"{left // length}{name}{left % length // rest}{rest_name}"
    return f"{left}s"
