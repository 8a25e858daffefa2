"""Durations on the command line: `90s`, `30m`, `12h`, `7d`."""

import re

from actograph.contract.errors import InvalidRequest

NEVER = "never"
_SPAN = re.compile(r"(\d{1,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(text: str, option: str) -> int:
    """Return the seconds of a duration.

    Raises:
        InvalidRequest: `text` is not a duration; the message names `option`.
    """
    match = _SPAN.fullmatch(text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise InvalidRequest(f"{option}: {text!r} is not a duration; use 90s, 30m, 12h or 7d")
    return int(match[1]) * _SECONDS[match[2]]
