"""Removes stored sessions that nothing refers to: `python -m storage.upkeep.sweep --dry-run|--delete`.

A worker that is killed after its session's files are in place and before the index has their row
leaves an orphan; the sample is run again and gets another session. An orphan goes only where its own
manifest and the index together prove that nobody will miss it: the index knows the sample that the
manifest names as completed, with another session that is in the store, or with one that a user deleted;
or it remembers that the job was deleted.
Ids are 128 random bits and a completed sample is never run again. Hence an index that is new, empty,
restored from an old copy or another service's never leads to a removal of what it does not know:
such sessions are counted and left alone. An upload that broke off before its manifest was never a
session, and goes too.
"""

import argparse
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
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

#: no writer takes so long from its files to its row
ORPHAN_SECONDS = 3600.0
_BATCH = 500


@dataclass
class Sweep:
    """What was found in the store without a row in the index."""

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
    """Find sessions without a row and, where `delete` says so, remove those that are proved superseded.

    Args:
        older_than_seconds: what was written since then is left alone.
        stop: ends the search early once it is set.
    """
    oldest = time.time() - older_than_seconds
    found = Sweep()
    old = (p for p in store.list_prefixes("sessions") if p.modified_at <= oldest)
    for batch in _batches(old):
        if stop is not None and stop.is_set():
            break
        sweep_batch(database, store, batch, found, delete=delete)
    return found


def sweep_batch(
    database: Database, store: ArtifactStore, batch: Sequence[StoredPrefix], found: Sweep, *, delete: bool
) -> None:
    """`sweep_sessions` for some prefixes, all old enough; adds to `found`."""
    for prefix in without_row(database, batch):
        if not prefix.incomplete and not _is_superseded(database, store, id_of(prefix)):
            found.unknown.append(prefix)
            continue
        if delete:
            store.delete_prefix(prefix.prefix)
        found.orphans.append(prefix)


def without_row(database: Database, prefixes: Sequence[StoredPrefix]) -> list[StoredPrefix]:
    """Prefixes of sessions that the index does not know, not even as deleted."""
    ids = [id_of(prefix) for prefix in prefixes]
    with database.read() as session:
        known = set(session.scalars(sa.select(SessionRow.id).where(SessionRow.id.in_(ids))))
        known |= deletions.pending_ids(session, ids)
    return [prefix for prefix in prefixes if id_of(prefix) not in known]


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


def id_of(prefix: StoredPrefix) -> str:
    return prefix.prefix.rpartition("/")[2]


def _batches(prefixes: Iterable[StoredPrefix]) -> Iterator[list[StoredPrefix]]:
    iterator = iter(prefixes)
    while batch := list(islice(iterator, _BATCH)):
        yield batch


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m storage.upkeep.sweep", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--dry-run", action="store_true", help="say what would be removed")
    action.add_argument("--delete", action="store_true", help="remove it")
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
        sys.stdout.write(
            f"left alone, the index does not know it: {prefix.prefix} ({prefix.bytes:,} bytes)\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
