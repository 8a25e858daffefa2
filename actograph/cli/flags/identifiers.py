"""Ids as people type them: shortened to any beginning that only one item has."""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from actograph.contract.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from actograph.client import Client

_WHOLE = re.compile(r"^[a-z]+_[0-9a-f]{32}$")
_DIGITS = re.compile(r"[0-9a-f]{1,32}")


def resolve(typed: str, prefix: str, known: Callable[[str], Iterable[str]]) -> str:
    """The whole id that `typed` stands for.

    `job_3fa2`, and `3fa2` with the prefix `job`, both match `job_3fa2...`.

    Args:
        known: gives the ids there are, at least those with the beginning that it is called with; not
            asked where `typed` is whole.

    Raises:
        NotFound: nothing begins like this.
        InvalidRequest: several do, or nothing was typed.
    """
    if _WHOLE.match(typed):
        return typed
    wanted = typed if typed.startswith(f"{prefix}_") else f"{prefix}_{typed}"
    if wanted == f"{prefix}_":
        raise InvalidRequest(f"an id is needed, such as {prefix}_3fa2")
    if not _DIGITS.fullmatch(wanted.removeprefix(f"{prefix}_")):
        raise NotFound(f"nothing has the id {typed}")
    found: list[str] = []
    for identifier in known(wanted):
        if identifier.startswith(wanted):
            found.append(identifier)
            if len(found) > 1:
                raise InvalidRequest(f"{typed} is not unique: {found[0]} and {found[1]} begin with it")
    if not found:
        raise NotFound(f"nothing has the id {typed}")
    return found[0]


def job(client: "Client", typed: str) -> str:
    """The whole id of the job that was typed. Raises what `resolve` does."""
    return resolve(typed, "job", lambda beginning: (job.id for job in client.jobs.list(id_prefix=beginning)))


def session(client: "Client", typed: str) -> str:
    """The whole id of the session that was typed. Raises what `resolve` does."""
    return resolve(
        typed, "ses", lambda beginning: (session.id for session in client.sessions.list(id_prefix=beginning))
    )


def batch(client: "Client", typed: str) -> str:
    """The whole id of the batch that was typed. Raises what `resolve` does."""
    return resolve(typed, "batch", lambda _: (batch.id for batch in client.batches.list()))
