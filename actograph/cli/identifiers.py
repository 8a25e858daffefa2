"""Ids as people type them: shortened to any beginning that only one item has."""

import re
from collections.abc import Iterable

from actograph.contract.errors import InvalidRequest, NotFound

_WHOLE = re.compile(r"^[a-z]+_[0-9a-f]{32}$")


def resolve(typed: str, prefix: str, known: Iterable[str]) -> str:
    """The whole id that `typed` stands for; `known` is read only where `typed` is not whole.

    `job_3fa2`, and `3fa2` with the prefix `job`, both match `job_3fa2...`.

    Raises:
        NotFound: nothing begins like this.
        InvalidRequest: several do, or nothing was typed.
    """
    if _WHOLE.match(typed):
        return typed
    wanted = typed if typed.startswith(f"{prefix}_") else f"{prefix}_{typed}"
    if wanted == f"{prefix}_":
        raise InvalidRequest(f"an id is needed, such as {prefix}_3fa2")
    found: list[str] = []
    for identifier in known:
        if identifier.startswith(wanted):
            found.append(identifier)
            if len(found) > 1:
                raise InvalidRequest(f"{typed} is not unique: {found[0]} and {found[1]} begin with it")
    if not found:
        raise NotFound(f"nothing has the id {typed}")
    return found[0]
