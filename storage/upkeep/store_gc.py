"""Clear the store page by page. A call works for some seconds and returns where the next one continues.

It removes expired sessions and uploads, the stored files of deleted ones, and leftovers of killed writers
(incomplete multipart uploads included). Files that the index does not have are listed and left alone: the
index may be new, or restored from an old copy.
"""

import time
from itertools import islice

import sqlalchemy as sa

from actograph.contract.errors import InvalidRequest
from actograph.contract.operations import StoredObject, StoreGc
from storage.artifacts.store import ArtifactStore, StoredPrefix
from storage.files import files
from storage.index import visible
from storage.index.database import Database
from storage.sessions import changes
from storage.tables.models import FileRow, SessionRow
from storage.upkeep import reaper

START, EXPIRED, SESSIONS, FILES = "start", "expired", "sessions", "files"
#: no writer takes so long with one file
OLD_SECONDS = 3600.0
_BATCH = 500


def collect(
    database: Database,
    store: ArtifactStore,
    *,
    dry_run: bool,
    after: str | None = None,
    seconds: float = 10.0,
    older_than_seconds: float = OLD_SECONDS,
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
    unknown, reached = find_unknown(
        database, store, phase, after=last_id, older_than_seconds=older_than_seconds, deadline=deadline
    )
    return StoreGc(
        dry_run=dry_run,
        unknown=[StoredObject(id=prefix.id, bytes=prefix.bytes) for prefix in unknown],
        next=f"{phase}:{reached}" if reached else (FILES if phase == SESSIONS else None),
        **values,
    )


def find_unknown(
    database: Database,
    store: ArtifactStore,
    parent: str,
    *,
    after: str,
    older_than_seconds: float,
    deadline: float,
) -> tuple[list[StoredPrefix], str | None]:
    """Find stored `sessions` or `files` that the index does not have, not even as doomed.

    Returns them, and the last id that was read; None if all were.
    """
    oldest = time.time() - older_than_seconds
    old = (prefix for prefix in store.list_prefixes(parent, after) if prefix.modified_at <= oldest)
    row = FileRow if parent == FILES else SessionRow
    unknown: list[StoredPrefix] = []
    while batch := list(islice(old, _BATCH)):
        with database.read() as session, visible.doomed(session):
            chosen = sa.select(row.id).where(row.id.in_([prefix.id for prefix in batch]))
            known = set(session.scalars(chosen))
        unknown += [prefix for prefix in batch if prefix.id not in known]
        if time.monotonic() >= deadline:
            return unknown, batch[-1].id
    return unknown, None


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
    reaped = reaper.reap(database, store, deadline=deadline)
    with database.read() as session:
        # files that another process removes, or that the store refuses to remove, are not waited for
        return total, reaped.count == 0 or not reaper.is_any_due(session)
