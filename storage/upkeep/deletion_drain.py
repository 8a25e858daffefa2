"""Execute pending deletions: rows slice by slice, then stored files in batches.

Any process may call `drain_deletions`; one at a time works. A crash between two steps leaves entries in
`storage.index.deletions`, and every step can be repeated.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from storage.artifacts.store import ArtifactStore
from storage.index.clock import now
from storage.index.database import Database
from storage.jobs import job_deletion, session_removal
from storage.tables.models import DeletionRow, FileRow, SessionRow

log = logging.getLogger(__name__)

#: sessions whose rows one transaction removes
SLICE = 500
#: sessions and files whose stored bytes are removed at once
BATCH = 1000
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 600.0
#: between two transactions, for other writers
_REST_SECONDS = 0.005


@dataclass(slots=True)
class Drained:
    """Stored sessions and files that were removed."""

    count: int = 0
    bytes: int = 0


def drain_deletions(
    database: Database,
    store: ArtifactStore,
    stop: threading.Event | None = None,
    *,
    deadline: float | None = None,
) -> Drained:
    """Execute due deletions until none is left, the store fails, `stop` is set or the deadline has passed.

    Does nothing while another process drains.

    Args:
        deadline: as `time.monotonic` counts.
    """
    drained = Drained()
    stop = stop or threading.Event()
    with database.alone("deletions") as is_alone:
        while is_alone and not stop.is_set():
            has_removed_rows = _remove_rows(database)
            has_removed_files = _remove_files(database, store, drained)
            if not (has_removed_rows or has_removed_files):
                break
            if deadline is not None and time.monotonic() >= deadline:
                break
            stop.wait(_REST_SECONDS)
    return drained


def _remove_rows(database: Database) -> bool:
    """Remove one slice of rows of listed sessions and jobs, oldest first; False if nothing is listed."""
    with database.read() as session:
        listed = sa.select(DeletionRow.id).where(DeletionRow.listed == sa.true())
        ids = session.scalars(listed.order_by(DeletionRow.created_at).limit(SLICE)).all()
    if not ids:
        return False
    with database.write() as session:
        job_id = next((one for one in ids if one.startswith("job_")), None)
        if job_id is not None:
            job_deletion.remove_slice(session, job_id)
        else:
            _remove_sessions(session, ids)
    return True


def _remove_sessions(session: Session, ids: Sequence[str]) -> None:
    session_removal.remove(session, ids)
    # left over where a session's row was gone already
    gone = (DeletionRow.listed == sa.true(), ~sa.exists().where(SessionRow.id == DeletionRow.id))
    session.execute(sa.delete(DeletionRow).where(DeletionRow.id.in_(ids), *gone))


def _remove_files(database: Database, store: ArtifactStore, drained: Drained) -> bool:
    """Remove the stored files of one batch; False if nothing is due or nothing could be removed."""
    with database.read() as session:
        due = DeletionRow.next_attempt_at <= now(session)
        columns = (DeletionRow.id, DeletionRow.bytes, DeletionRow.names, DeletionRow.attempts)
        statement = sa.select(*columns).where(due, DeletionRow.listed == sa.false())
        statement = statement.order_by(DeletionRow.next_attempt_at, DeletionRow.id).limit(BATCH)
        doomed = session.execute(statement).all()
        alive = _with_row(session, [one.id for one in doomed])
    if not doomed:
        return False
    failures = store.delete_many({_prefix(one.id): one.names for one in doomed if one.id not in alive})
    gone = [one for one in doomed if _prefix(one.id) not in failures]
    failed = [one for one in doomed if _prefix(one.id) in failures]
    with database.write() as session:
        session.execute(sa.delete(DeletionRow).where(DeletionRow.id.in_([one.id for one in gone])))
        for attempts in {one.attempts for one in failed}:
            pause = min(FIRST_PAUSE_SECONDS * 2.0**attempts, LONGEST_PAUSE_SECONDS)
            ids = [one.id for one in failed if one.attempts == attempts]
            session.execute(
                sa.update(DeletionRow)
                .where(DeletionRow.id.in_(ids))
                .values(attempts=attempts + 1, next_attempt_at=now(session) + pause)
            )
    if failed:
        reason = failures[_prefix(failed[0].id)]
        log.warning("%d deleted objects are still stored and are tried again: %s", len(failed), reason)
    removed = [one.bytes for one in gone if one.id not in alive]
    drained.count += len(removed)
    drained.bytes += sum(removed)
    return bool(gone)


def _with_row(session: Session, ids: Sequence[str]) -> set[str]:
    """Ids of sessions and files that have a row again, for example stored twice. They stay."""
    return {
        one
        for table in (SessionRow, FileRow)
        for one in session.scalars(sa.select(table.id).where(table.id.in_(ids)))
    }


def _prefix(identifier: str) -> str:
    """Prefix of a session or file in the store."""
    return f"files/{identifier}" if identifier.startswith("file_") else f"sessions/{identifier}"
