"""The error for a hook that a session does not have."""

from collections.abc import Iterable

from actograph.contract.errors import NotFound

_SHOWN = 8


def absent(name: str, hooks: Iterable[str]) -> NotFound:
    """Return the error for a name that is not in `hooks`."""
    known = list(hooks)
    rest = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return NotFound(
        f"no tensor {name} is stored; the session has {', '.join(known[:_SHOWN]) or 'none'}{rest}"
    )
