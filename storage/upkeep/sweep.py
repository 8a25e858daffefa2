"""Remove stored sessions without a row: `python -m storage.upkeep.sweep --dry-run|--delete`.

A worker that is killed between the commit of a session's files and the commit of its row leaves an orphan.
The sample runs again and gets another session. The sweep removes an orphan only if its manifest and the index
together prove that nobody needs it:

* The index has the sample of the manifest as completed. Its session is another one that is in the store, or
  it was deleted by a user.
* Or the index remembers that the job was deleted.

Ids are 128 random bits, and a completed sample never runs again. So an index that is new, empty, restored
from an old copy or of another service never leads to a removal: sessions that it does not know are counted
and left alone. An upload that ended before its manifest never was a session, and is removed.
"""

import argparse
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import sqlalchemy as sa

from actograph.contract.errors import ActographError
from actograph.contract.resources import SampleStatus
from actograph.settings import Settings
from storage import migrate
from storage.artifacts.factory import open_store
from storage.artifacts.store import ArtifactStore, StoredPrefix
from storage.index import deletions
from storage.index.database import Database
from storage.sessions.reader import SessionReader
from storage.sessions.writer import session_prefix
from storage.tables.models import SampleRow, SessionRow

#: no writer takes so long between its files and its row
ORPHAN_SECONDS = 3600.0
_BATCH = 500


@dataclass
class Sweep:
    """Stored sessions without a row in the index."""

    #: superseded sessions: removed, or to be removed
    orphans: list[StoredPrefix] = field(default_factory=list)
    #: sessions that the index cannot judge; they are never removed
    unknown: list[StoredPrefix] = field(default_factory=list)

    @property
    def orphan_bytes(self) -> int:
        return sum(prefix.bytes for prefix in self.orphans)


def sweep_sessions(
    database: Database,
    store: ArtifactStore,
    *,
    delete: bool,
    older_than_seconds: float = ORPHAN_SECONDS,
    stop: threading.Event | None = None,
) -> Sweep:
    """Find sessions without a row. With `delete`, remove the superseded ones.

    Args:
        older_than_seconds: newer files are left alone.
        stop: ends the search early once it is set.
    """
    found = Sweep()
    for batch in old_batches(store, "sessions", older_than_seconds):
        if stop is not None and stop.is_set():
            break
        sweep_batch(database, store, batch, found, delete=delete)
    return found


def old_batches(
    store: ArtifactStore, parent: str, older_than_seconds: float, after: str = ""
) -> Iterator[list[StoredPrefix]]:
    """Prefixes under `sessions` or `files` that were written so long ago, in batches."""
    oldest = time.time() - older_than_seconds
    old = (prefix for prefix in store.list_prefixes(parent, after) if prefix.modified_at <= oldest)
    while batch := list(islice(old, _BATCH)):
        yield batch


def sweep_batch(
    database: Database, store: ArtifactStore, batch: Sequence[StoredPrefix], found: Sweep, *, delete: bool
) -> None:
    """Sweep some prefixes, all old enough; adds to `found`."""
    for prefix in without_row(database, batch):
        if not prefix.incomplete and not _is_superseded(database, store, prefix.id):
            found.unknown.append(prefix)
            continue
        if delete:
            store.delete_prefix(prefix.prefix)
        found.orphans.append(prefix)


def without_row(database: Database, prefixes: Sequence[StoredPrefix]) -> list[StoredPrefix]:
    """Prefixes of sessions that the index does not have, not even as deleted."""
    ids = [prefix.id for prefix in prefixes]
    with database.read() as session:
        known = set(session.scalars(sa.select(SessionRow.id).where(SessionRow.id.in_(ids))))
        known |= deletions.pending_ids(session, ids)
    return [prefix for prefix in prefixes if prefix.id not in known]


def _is_superseded(database: Database, store: ArtifactStore, session_id: str) -> bool:
    try:
        manifest = SessionReader(store, session_id).manifest
    except ActographError:
        return False  # unreadable, or deleted meanwhile
    with database.read() as session:
        if deletions.pending_ids(session, [manifest.job_id]):
            return True  # the job was deleted
        sample = session.get(SampleRow, manifest.sample_id)
        if sample is None or sample.job_id != manifest.job_id or sample.status != SampleStatus.COMPLETED:
            return False
        kept = sample.session_id
    return kept is None or (kept != session_id and store.exists(session_prefix(kept)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m storage.upkeep.sweep", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--dry-run", action="store_true", help="list the sessions to remove")
    action.add_argument("--delete", action="store_true", help="remove them")
    parser.add_argument("--older-than", type=float, default=ORPHAN_SECONDS, metavar="SECONDS")
    arguments = parser.parse_args()
    settings = Settings()
    database = Database(settings.effective_database_url)
    try:
        migrate.require_current(database)
        found = sweep_sessions(
            database,
            open_store(settings.effective_artifact_url),
            delete=arguments.delete,
            older_than_seconds=arguments.older_than,
        )
    except ActographError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    finally:
        database.close()
    verb = "removed" if arguments.delete else "to be removed"
    sys.stdout.write(f"{verb}: {len(found.orphans)} superseded sessions, {found.orphan_bytes:,} bytes\n")
    for prefix in found.unknown:
        sys.stdout.write(f"not in the index, left alone: {prefix.prefix} ({prefix.bytes:,} bytes)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
