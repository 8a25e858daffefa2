"""Delete jobs: a small one at once; a large one is hidden at once and removed slice by slice."""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import Conflict
from actograph.contract.resources import JobStatus
from storage.index import counters, deletions, row_locks
from storage.index.database import now
from storage.jobs import jobs, session_removal
from storage.tables.models import BatchRow, DeletionRow, EventRow, JobRow, SampleRow, SessionRow

#: samples, or events, that one transaction deletes
SLICE = 500


def delete(session: Session, job_id: str, *, include_pinned: bool = True) -> None:
    """Delete an ended or queued job with its samples, sessions and events, and its files in the background.

    Raises:
        NotFound: no such job.
        Conflict: a worker is running it, or it has pinned sessions and `include_pinned` is False.
    """
    row = jobs.lock_to_delete(session, job_id)
    if row.status == JobStatus.IN_PROGRESS:
        raise Conflict(f"job {job_id} is {row.status}; cancel it first")
    # under the lock: its last samples may have been committed meanwhile
    of_job = (SessionRow.job_id == job_id, *deletions.visible(session))
    pinned = sa.func.coalesce(sa.func.sum(sa.case((SessionRow.pinned, 1), else_=0)), 0)
    size = sa.func.coalesce(sa.func.sum(SessionRow.bytes), 0)
    held = session.execute(sa.select(sa.func.count(), size, pinned).where(*of_job)).one()
    if held[2] and not include_pinned:
        raise Conflict(
            f"{held[2]} sessions of job {job_id} are pinned; unpin them, or say include_pinned=true"
        )
    counters.add_removed(session, "deleted", sessions=held[0], size=int(held[1]))
    # the foreign keys would do so with the last slice
    session.execute(sa.update(BatchRow).where(BatchRow.job_id == job_id).values(job_id=None))
    row.deleted_at = now(session)
    row.idempotency_key = None
    if row.status == JobStatus.QUEUED:  # or a worker would begin it
        row.status, row.finished_at, row.pending = JobStatus.CANCELLED, row.deleted_at, 0
    session.flush()
    deletions.list_job(session, job_id, row.owner)
    if _is_small(session, job_id):
        remove_slice(session, job_id)


def discard(session: Session, job_id: str) -> None:
    """Delete an incomplete job in the background. Does nothing if it was completed or deleted."""
    doomed = (JobRow.id == job_id, JobRow.status.in_(jobs.HIDDEN), JobRow.deleted_at.is_(None))
    marked = (
        sa.update(JobRow)
        .where(*doomed)
        .values(deleted_at=now(session), idempotency_key=None)
        .returning(JobRow.owner)
    )
    for (owner,) in session.execute(marked).all():
        deletions.list_job(session, job_id, owner)


def remove_slice(session: Session, job_id: str) -> None:
    """Delete the next rows of a deleted job, the job's own row last."""
    held = row_locks.lock(session, JobRow, [job_id], to_delete=True)
    chosen = sa.select(SampleRow.id).where(SampleRow.job_id == job_id).order_by(SampleRow.position)
    sample_ids = session.scalars(chosen.limit(SLICE)).all()
    of_samples = sa.select(SessionRow.id).where(SessionRow.sample_id.in_(sample_ids))
    session_removal.remove(session, session.scalars(of_samples).all())
    session.execute(sa.delete(SampleRow).where(SampleRow.id.in_(sample_ids)))
    if len(sample_ids) == SLICE:
        return
    logged = sa.select(EventRow.id).where(EventRow.job_id == job_id).limit(SLICE)
    event_ids = session.scalars(logged).all()
    session.execute(sa.delete(EventRow).where(EventRow.id.in_(event_ids)))
    if len(event_ids) == SLICE:
        return
    session.execute(sa.delete(JobRow).where(JobRow.id == job_id))
    entry = DeletionRow.id == job_id
    if any(row.spec.get("capture") for row in held):  # the sweep may find files of it later
        session.execute(sa.update(DeletionRow).where(entry).values(listed=False))
    else:
        session.execute(sa.delete(DeletionRow).where(entry))


def _is_small(session: Session, job_id: str) -> bool:
    """True if one slice removes the whole job."""
    return all(
        len(session.scalars(sa.select(table.id).where(table.job_id == job_id).limit(SLICE)).all()) < SLICE
        for table in (SampleRow, EventRow)
    )
