"""Clear the store: expired sessions and uploads, files of deleted ones, and leftovers of killed writers.

A call works for some seconds and says whether something is left. Files that the index does not have are left
alone, since the index may be new, or restored from an old copy; `storage.upkeep.store_verify` lists them.
"""

import time

from actograph.contract.errors import InvalidRequest
from actograph.contract.operations import StoreGc
from storage.artifacts.store import ArtifactStore
from storage.files import files
from storage.index.database import Database
from storage.sessions import changes
from storage.upkeep import reaper

#: `next` of a page after which something is left
REST = "rest"
#: no writer takes so long with one file
OLD_SECONDS = 3600.0


def collect(
    database: Database,
    store: ArtifactStore,
    *,
    dry_run: bool,
    after: str | None = None,
    seconds: float = 10.0,
    older_than_seconds: float = OLD_SECONDS,
) -> StoreGc:
    """Clear the store for about `seconds`. With `dry_run`, report and remove nothing.

    Args:
        after: `next` of the page before.
        older_than_seconds: newer files are left alone.

    Raises:
        InvalidRequest: `after` is not the `next` of a page.
    """
    if after not in (None, REST):
        raise InvalidRequest(f"after: {after!r} is not the next of a page", param="after")
    deadline = time.monotonic() + seconds
    # incomplete multipart uploads included
    leftovers = store.sweep_staging(older_than_seconds, dry_run=dry_run) if after is None else 0
    if dry_run:
        with database.read() as session:
            due = changes.expired(session)
        return StoreGc(
            dry_run=True, leftovers=leftovers, expired_sessions=due.sessions, expired_bytes=due.bytes
        )
    database.give_back_log()
    expired_files = files.expire(database)
    gone = more = changes.expire(database)
    while more.sessions and time.monotonic() < deadline:
        more = changes.expire(database)
        gone += more
    reaped = reaper.reap(database, store, deadline=deadline)
    with database.read() as session:
        # files that another process removes, or that the store refuses to remove, are not waited for
        is_done = not more.sessions and (reaped.count == 0 or not reaper.is_any_due(session))
    return StoreGc(
        dry_run=False,
        leftovers=leftovers,
        expired_files=expired_files,
        expired_sessions=gone.sessions,
        expired_bytes=gone.bytes,
        next=None if is_done else REST,
    )
