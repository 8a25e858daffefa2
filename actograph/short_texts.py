"""Durations, ages, sizes and ids as short texts: `3m20s`, `2h`, `1.5 MB`, `job_0123456789ab`."""

import re
import time
from collections.abc import Mapping

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


def age(created_at: float) -> str:
    """Return the time since `created_at` in its largest unit: `3m`, `2h`, `5d`."""
    seconds = int(max(0.0, time.time() - created_at))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def size(count: int) -> str:
    """Return a size such as `1.5 MB`, in powers of 1000."""
    from rich.filesize import decimal  # the parser starts without rich

    return decimal(count)


def gib(count: int) -> str:
    """Return bytes of memory in powers of 1024, such as `1.53 GiB`."""
    return f"{count / 2**30:.3g} GiB"


def memory_text(used: Mapping[str, int]) -> str:
    """Return memory as `before 0.21 GiB, after 1.53 GiB, peak 1.9 GiB`, of the keys that there are."""
    return ", ".join(f"{when} {gib(used[when])}" for when in ("before", "after", "peak") if when in used)


def shorten(text: str) -> str:
    """Shorten an id to `job_0123456789ab`. Other texts are kept."""
    return re.sub(r"(_[0-9a-f]{12})[0-9a-f]{20}$", r"\1", text)
