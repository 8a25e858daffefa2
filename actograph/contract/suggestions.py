"""The nearest known name, for errors about an unknown one."""

import difflib
from collections.abc import Iterable

#: known names that an error lists at most
LISTED = 20


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The nearest known name; None if none is near."""
    near = difflib.get_close_matches(name.replace("-", "_"), sorted(set(known)), n=1, cutoff=0.6)
    return near[0] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `. Did you mean 'x'?` for the nearest known name, else the known names; "" if there are none."""
    names = sorted(set(known))
    if near := nearest(name, names):
        return f". Did you mean {near!r}?"
    if not names:
        return ""
    more = ", ..." if len(names) > LISTED else ""
    return f". Known: {', '.join(names[:LISTED])}{more}"
