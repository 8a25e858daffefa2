"""The nearest known name, for errors about an unknown one."""

import difflib
from collections.abc import Iterable

#: known names that an error lists at most
LISTED = 20


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `. Did you mean 'x'?` for the nearest known name, else the known names; "" if there are none."""
    names = sorted(set(known))
    near = difflib.get_close_matches(name.replace("-", "_"), names, n=1, cutoff=0.6)
    if near:
        return f". Did you mean {near[0]!r}?"
    if not names:
        return ""
    more = ", ..." if len(names) > LISTED else ""
    return f". Known: {', '.join(names[:LISTED])}{more}"
