"""Remove what is due for removal: stored files first, then the row.

A row holds the names and bytes of its files until they are gone. So after a crash at any moment the row is
due again, and no file is left that the index does not know. Each slice takes three steps:

1. Mark rows as being removed, in a transaction of its own, with the time of the next attempt. From then on
   nobody can publish them.
2. Remove their files. Files that the store keeps are tried again with the next attempt, and hold up nothing.
3. Remove the rows whose files are gone.

Any process may call `reap`; one at a time works.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from storage.artifacts.store import ArtifactStore
from storage.index import tallies, visible
from storage.index.clock import now
from storage.index.database import Database, changed
from storage.jobs import control, jobs
from storage.tables.models import EventRow, FileRow, JobRow, SampleRow, SessionRow, Visibility

log = logging.getLogger(__name__)

#: rows of one transaction, so that other writers wait for milliseconds
SLICE = 500
#: jobs whose last rows one transaction removes
JOBS = 50
#: the next attempt after files could not be removed, or their reaper died
RETRY_SECONDS = 60.0
#: between two slices, for other writers
_REST_SECONDS = 0.005

WithFiles = type[SessionRow] | type[FileRow]


@dataclass(slots=True)
class Reaped:
    """Removed sessions and files."""

    count: int = 0
    bytes: int = 0


def is_any_due(session: Session) -> bool:
    """Whether `reap` would find something to do."""
    with visible.hidden_too(session):
        return any(
            session.execute(sa.select(row.id).where(_is_due(session, row)).limit(1)).first() is not None
            for row in (JobRow, SessionRow, FileRow)
        )


def reap(
    database: Database,
    store: ArtifactStore,
    stop: threading.Event | None = None,
    *,
    deadline: float | None = None,
) -> Reaped:
    """Remove what is due until nothing is left, the store fails, `stop` is set or the deadline has passed.

    Does nothing while another process reaps.

    Args:
        deadline: as `time.monotonic` counts.
    """
    reaped, stop = Reaped(), stop or threading.Event()
    with database.alone("reaper") as is_alone:
        while is_alone and not stop.is_set():
            has_removed = [_reap_slice(database, store, row, reaped) for row in (SessionRow, FileRow)]
            if not any([*has_removed, _remove_job_rows(database)]):
                break
            if deadline is not None and time.monotonic() >= deadline:
                break
            stop.wait(_REST_SECONDS)
    return reaped


def _is_due(session: Session, row: type[JobRow | SessionRow | FileRow]) -> sa.ColumnElement[bool]:
    return row.removal_due_at <= now(session)


def _reap_slice(database: Database, store: ArtifactStore, row: WithFiles, reaped: Reaped) -> bool:
    """Remove a slice of sessions or files. False if none is due, or the store removed none."""
    marked = _mark(database, row)
    if not marked:
        return False
    parent = "files" if row is FileRow else "sessions"
    # an S3 store need not list the names that the index has
    failures = store.delete_many({f"{parent}/{one.id}": list(one.files) or None for one in marked})
    gone = [one for one in marked if f"{parent}/{one.id}" not in failures]
    if failures:
        reason = next(iter(failures.values()))
        log.warning("%d deleted objects are still stored and are tried again: %s", len(failures), reason)
    _remove_rows(database, row, [one.id for one in gone])
    reaped.count += len(gone)
    reaped.bytes += sum(one.bytes for one in gone)
    return bool(gone)


def _mark(database: Database, row: WithFiles) -> Sequence[sa.Row[Any]]:
    """Mark the next slice as being removed. Returns `id`, `bytes` and `files`; of uploads no files."""
    files = SessionRow.files if row is SessionRow else sa.literal("").label("files")
    with database.write() as session, visible.hidden_too(session):
        ids = _locked(
            session, sa.select(row.id).where(_is_due(session, row)).order_by(row.removal_due_at), row
        )
        if not ids and row is SessionRow:
            of_due = sa.select(JobRow.id).where(_is_due(session, JobRow))
            # One in the making belongs to a worker that was lost: the job had ended before it was deleted.
            waits = SessionRow.visibility != Visibility.REMOVING
            of_jobs = sa.select(SessionRow.id).where(SessionRow.job_id.in_(of_due), waits)
            ids = _locked(session, of_jobs, SessionRow)
        marking = (
            sa.update(row)
            .where(row.id.in_(ids))
            .values(visible.removing(now(session) + RETRY_SECONDS))
            .returning(row.id, row.bytes, files)
            .execution_options(synchronize_session=False)
        )
        return session.execute(marking).all() if ids else ()


def _locked(session: Session, chosen: sa.Select[str], row: WithFiles) -> Sequence[str]:
    """The first ids that a statement selects, without rows that others have locked."""
    return session.scalars(chosen.limit(SLICE).with_for_update(skip_locked=True, of=row)).all()


def _remove_rows(database: Database, row: WithFiles, ids: Sequence[str]) -> None:
    if not ids:
        return
    with database.write() as session, visible.hidden_too(session):
        if row is SessionRow:
            _leave_jobs_and_samples(session, ids)
        session.execute(sa.delete(row).where(row.id.in_(ids)).execution_options(synchronize_session=False))


def _leave_jobs_and_samples(session: Session, session_ids: Sequence[str]) -> None:
    """Take the bytes of sessions off their jobs, and their ids off their samples."""
    removed = SessionRow.id.in_(session_ids)
    of_sessions = session.scalars(sa.select(SessionRow.job_id).where(removed).distinct()).all()
    locked = jobs.lock_unread(session, of_sessions)
    # so that the rows have the bytes that are taken off
    control.settle(session, tallies.jobs_with_any(session, locked))
    held = JobRow.id.in_(locked)
    of_job = sa.select(sa.func.sum(SessionRow.bytes)).where(SessionRow.job_id == JobRow.id, removed)
    samples = SampleRow.id.in_(sa.select(SessionRow.sample_id).where(removed))
    for statement in (
        sa.update(JobRow).where(held).values(bytes=JobRow.bytes - of_job.scalar_subquery()),
        sa.update(SampleRow).where(samples, SampleRow.session_id.in_(session_ids)).values(session_id=None),
    ):
        session.execute(statement.execution_options(synchronize_session=False))


def _remove_job_rows(database: Database) -> bool:
    """Remove a slice of rows of jobs that are due that have no session left, the jobs' own rows last."""
    with database.write() as session, visible.hidden_too(session):
        has_session = sa.exists().where(SessionRow.job_id == JobRow.id)
        due = (
            sa.select(JobRow.id).where(_is_due(session, JobRow), ~has_session).order_by(JobRow.removal_due_at)
        )
        ids = session.scalars(due.limit(JOBS).with_for_update(skip_locked=True, of=JobRow)).all()
        if not ids:
            return False
        room = SLICE
        for row in (EventRow, SampleRow):
            found = session.scalars(sa.select(row.id).where(row.job_id.in_(ids)).limit(room)).all()
            session.execute(sa.delete(row).where(row.id.in_(found)))
            room -= len(found)
        removed = sa.delete(JobRow).where(JobRow.id.in_(ids)).execution_options(synchronize_session=False)
        return not room or changed(session.execute(removed)) > 0
