"""Clear the store page by page. A call works for some seconds and returns where the next one continues.

It removes expired sessions, stored files of deleted sessions and uploads, files of superseded sessions,
and leftovers of killed writers (incomplete multipart uploads included).
Files that the index does not have are listed and left alone, uploads included: no manifest names their owner.
"""

import time
from collections.abc import Callable, Iterable, Sequence

import sqlalchemy as sa

from actograph.contract.errors import InvalidRequest
from actograph.contract.operations import StoredObject, StoreGc
from storage.artifacts.store import ArtifactStore, StoredPrefix
from storage.files import files
from storage.index import deletions
from storage.index.database import Database
from storage.sessions import changes
from storage.tables.models import FileRow
from storage.upkeep.deletion_drain import drain_deletions
from storage.upkeep.sweep import ORPHAN_SECONDS, Sweep, old_batches, sweep_batch

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
    """Clear one page of the store. With `dry_run`, report and remove nothing.

    Args:
        after: `next` of the page before.
        seconds: about how long the call may take.
        older_than_seconds: newer files are left alone.

    Raises:
        InvalidRequest: `after` is not the `next` of a page.
    """
    phase, _, last_id = (after or START).partition(":")
    if phase not in (START, EXPIRED, SESSIONS, FILES):
        raise InvalidRequest(f"after: {after!r} is not the next of a page", param="after")
    deadline = time.monotonic() + seconds
    values: dict[str, int] = {}
    if phase == START:
        database.give_back_log()
        values["expired_files"] = 0 if dry_run else files.expire(database)
        values["leftovers"] = store.sweep_staging(older_than_seconds, dry_run=dry_run)
    if phase in (START, EXPIRED):
        expired, done = _expired(database, store, deadline, dry_run=dry_run)
        values |= {"expired_sessions": expired.sessions, "expired_bytes": expired.bytes}
        if not done:
            return StoreGc(dry_run=dry_run, next=EXPIRED, **values)
        phase, last_id = SESSIONS, ""
    found = Sweep()
    old = old_batches(store, phase, older_than_seconds, last_id)
    if phase == SESSIONS:
        reached = run_until(
            old, deadline, lambda batch: sweep_batch(database, store, batch, found, delete=not dry_run)
        )
    else:
        reached = run_until(old, deadline, lambda batch: found.unknown.extend(unknown_files(database, batch)))
    follows = f"{phase}:{reached}" if reached else (FILES if phase == SESSIONS else None)
    return StoreGc(
        dry_run=dry_run,
        orphans=[stored_object(prefix) for prefix in found.orphans],
        unknown=[stored_object(prefix) for prefix in found.unknown],
        next=follows,
        **values,
    )


def stored_object(prefix: StoredPrefix) -> StoredObject:
    return StoredObject(id=prefix.id, bytes=prefix.bytes)


def unknown_files(database: Database, batch: Sequence[StoredPrefix]) -> list[StoredPrefix]:
    """Stored uploads that the index does not have, not even as deleted or being stored."""
    ids = [prefix.id for prefix in batch]
    with database.read() as session:
        known = set(session.scalars(sa.select(FileRow.id).where(FileRow.id.in_(ids))))
        known |= deletions.pending_ids(session, ids)
    return [prefix for prefix in batch if prefix.id not in known]


def run_until(
    batches: Iterable[list[StoredPrefix]], deadline: float, act: Callable[[list[StoredPrefix]], object]
) -> str | None:
    """Act on batches until the deadline. Returns the last id, or None if no batch is left."""
    for batch in batches:
        act(batch)
        if time.monotonic() >= deadline:
            return batch[-1].id
    return None


def _expired(
    database: Database, store: ArtifactStore, deadline: float, *, dry_run: bool
) -> tuple[changes.Count, bool]:
    """Remove expired sessions and deleted files. Returns the sessions, and whether nothing is left."""
    if dry_run:
        with database.read() as session:
            return changes.expired(session), True
    total = changes.Count()
    while (gone := changes.expire(database, limit=50)).sessions:
        total = total + gone
        if time.monotonic() >= deadline:
            return total, False
    drained = drain_deletions(database, store, deadline=deadline)
    with database.read() as session:
        # files that another process removes, or that the store refuses to remove, are not waited for
        return total, drained.count == 0 or not deletions.is_any_due(session)
