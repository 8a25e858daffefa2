"""Clearing the store, page by page: a call does some seconds of work and says where to go on.

What goes: expired sessions, stored files of deleted sessions and uploads, files of sessions that the index
proves superseded, leftovers of writers that were killed (uploads in parts among them), and answers to old
requests with an Idempotency-Key. What the index does not know is named and left alone, uploaded files
included: no manifest tells whose they were.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import sqlalchemy as sa

from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import StoredObject, StoreGc
from storage.artifacts.store import ArtifactStore, StoredPrefix
from storage.files import files
from storage.index import deletions
from storage.index.database import Database
from storage.sessions import session_changes
from storage.submission import idempotency
from storage.tables.models import FileRow
from storage.upkeep.deletion_drain import drain_deletions
from storage.upkeep.sweep import ORPHAN_SECONDS, Sweep, id_of, sweep_batch

_BATCH = 500
START, EXPIRED, SESSIONS, FILES = "start", "expired", "sessions", "files"


def collect(
    database: Database,
    store: ArtifactStore,
    *,
    dry_run: bool,
    after: str | None = None,
    seconds: float = 10.0,
    older_than_seconds: float = ORPHAN_SECONDS,
) -> StoreGc:
    """One page. With `dry_run` nothing is removed, and everything said.

    Args:
        after: `next` of the page before.
        seconds: about how long the call may take.
        older_than_seconds: files that were written since then are left alone.

    Raises:
        InvalidRequest: `after` is no page's `next`.
    """
    phase, _, last_id = (after or START).partition(":")
    if phase not in (START, EXPIRED, SESSIONS, FILES):
        raise InvalidRequest(f"after: {after!r} is no page's next", param="after")
    deadline = time.monotonic() + seconds
    values: dict[str, int] = {}
    if phase == START:
        database.give_back_log()
        values["expired_files"] = 0 if dry_run else files.expire(database)
        values["leftovers"] = store.sweep_staging(older_than_seconds, dry_run=dry_run)
        with database.write() as session:
            values["idempotency_keys"] = idempotency.forget(session, dry_run=dry_run)
    follows: str | None = SESSIONS
    if phase in (START, EXPIRED):
        expired, done = _expired(database, store, deadline, dry_run=dry_run)
        values |= {"expired_sessions": expired.sessions, "expired_bytes": expired.bytes}
        if not done:
            return StoreGc(dry_run=dry_run, next=EXPIRED, **values)
        phase, last_id = SESSIONS, ""
    found = Sweep()
    oldest = time.time() - older_than_seconds
    if phase == SESSIONS:
        old = _old(store, SESSIONS, last_id, oldest)
        reached = pages(
            old, deadline, lambda batch: sweep_batch(database, store, batch, found, delete=not dry_run)
        )
        follows = f"{SESSIONS}:{reached}" if reached else FILES
    else:
        old = _old(store, FILES, last_id, oldest)
        reached = pages(old, deadline, lambda batch: found.unknown.extend(unknown_files(database, batch)))
        follows = f"{FILES}:{reached}" if reached else None
    return StoreGc(
        dry_run=dry_run,
        orphans=[stored_object(prefix) for prefix in found.orphans],
        unknown=[stored_object(prefix) for prefix in found.unknown],
        next=follows,
        **values,
    )


def stored_object(prefix: StoredPrefix) -> StoredObject:
    return StoredObject(id=id_of(prefix), bytes=prefix.bytes)


def unknown_files(database: Database, batch: Sequence[StoredPrefix]) -> list[StoredPrefix]:
    """Stored uploads that the index does not know, not even as deleted or being stored."""
    ids = [id_of(prefix) for prefix in batch]
    with database.read() as session:
        known = set(session.scalars(sa.select(FileRow.id).where(FileRow.id.in_(ids))))
        known |= deletions.pending_ids(session, ids)
    return [prefix for prefix in batch if id_of(prefix) not in known]


def pages(
    found: Iterator[StoredPrefix], deadline: float, act: Callable[[list[StoredPrefix]], object]
) -> str | None:
    """Act on batches until the deadline; the id to go on behind, None where nothing is left."""
    while batch := list(islice(found, _BATCH)):
        act(batch)
        if time.monotonic() >= deadline:
            return id_of(batch[-1])
    return None


def _old(store: ArtifactStore, parent: str, after: str, oldest: float) -> Iterator[StoredPrefix]:
    return (prefix for prefix in store.list_prefixes(parent, after) if prefix.modified_at <= oldest)


def _expired(
    database: Database, store: ArtifactStore, deadline: float, *, dry_run: bool
) -> tuple[session_changes.Count, bool]:
    """Remove expired sessions and what was deleted; returns the former, and whether that was all."""
    if dry_run:
        with database.read() as session:
            return session_changes.expired(session), True
    total = session_changes.Count()
    while (gone := session_changes.expire(database, limit=50)).sessions:
        total = total + gone
        if time.monotonic() >= deadline:
            return total, False
    drained = drain_deletions(database, store, deadline=deadline)
    with database.read() as session:
        # what another process removes at the moment, or the store refuses, is not waited for
        return total, drained.count == 0 or not deletions.is_any_due(session)
