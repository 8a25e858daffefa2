"""Ids on the command line, which may be shortened to a unique prefix."""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from actograph.contract.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from actograph.client import Client

_WHOLE = re.compile(r"^[a-z]+_[0-9a-f]{32}$")
_DIGITS = re.compile(r"[0-9a-f]{1,32}")


def resolve(typed: str, prefix: str, known: Callable[[str], Iterable[str]]) -> str:
    """Return the full id for a shortened one.

    `job_3fa2`, and `3fa2` with the prefix `job`, both match `job_3fa2...`.

    Args:
        known: lists ids, at least those that start with its argument. It is not called for a full id.

    Raises:
        NotFound: no id matches.
        InvalidRequest: several ids match, or `typed` is empty.
    """
    if _WHOLE.match(typed):
        return typed
    prefixed = typed if typed.startswith(f"{prefix}_") else f"{prefix}_{typed}"
    if prefixed == f"{prefix}_":
        raise InvalidRequest(f"the id is empty; use one such as {prefix}_3fa2")
    if not _DIGITS.fullmatch(prefixed.removeprefix(f"{prefix}_")):
        raise NotFound(f"no {prefix} has the id {typed}")
    found: list[str] = []
    for identifier in known(prefixed):
        if identifier.startswith(prefixed):
            found.append(identifier)
            if len(found) > 1:
                raise InvalidRequest(f"{typed} is not unique: {found[0]} and {found[1]} start with it")
    if not found:
        raise NotFound(f"no {prefix} has the id {typed}")
    return found[0]


def job(client: "Client", typed: str) -> str:
    """Return the full id of a job. Raises the errors of `resolve`."""
    return resolve(typed, "job", lambda start: (job.id for job in client.jobs.list(id_prefix=start)))


def session(client: "Client", typed: str) -> str:
    """Return the full id of a session. Raises the errors of `resolve`."""
    return resolve(
        typed, "ses", lambda start: (session.id for session in client.sessions.list(id_prefix=start))
    )


def batch(client: "Client", typed: str) -> str:
    """Return the full id of a batch. Raises the errors of `resolve`."""
    return resolve(typed, "batch", lambda _: (batch.id for batch in client.batches.list()))
