"""Resolve hook names and aliases to a session's tensors."""

import re
from collections.abc import Iterable

from actograph.contract.errors import NotFound
from actograph.contract.hooks import canonical

_INDEX = re.compile(r"\[(\d+)\]")
_SHOWN = 8


def stored_name(name: str, hooks: Iterable[str]) -> str | None:
    """Return the entry of `hooks` for a hook point, alias or module location; None if there is none."""
    known = set(hooks)
    location = _INDEX.sub(r".\1", name).removesuffix(".0")
    return next((found for found in (name, canonical(name), location) if found in known), None)


def absent(name: str, hooks: Iterable[str]) -> NotFound:
    """Return the error for a name that is not in `hooks`."""
    known = list(hooks)
    rest = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return NotFound(
        f"no tensor {name} is stored; the session has {', '.join(known[:_SHOWN]) or 'none'}{rest}"
    )
