"""Turns among jobs of one priority and model.

A message says only that some job may have work. Jobs have more or fewer messages than others (one
for each worker that ran them, none where it was lost), so the order of messages shares nothing
fairly. The index does: the job that the fewest workers run goes first, then the one that was served
longest ago.
"""

from collections import Counter
from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import WorkerStatus
from storage.index.database import now
from storage.jobs import jobs
from storage.jobs.jobs import LOAD
from storage.queue.job_queue import IS_RUN, has_work, not_held
from storage.tables.models import JobRow, WorkerRow


def next_job(session: Session, job_id: str, worker_id: str, held: Collection[str] = ()) -> str:
    """The job that a turn of `job_id` goes to: it, or a sibling that has waited longer.

    Args:
        worker_id: who takes the turn; it does not count as running anything.
        held: owners whose jobs cannot be begun now, see `storage.accounts.quotas`.
    """
    row = jobs.get(session, job_id)
    if row.served_at is None:
        return job_id  # nobody has waited longer for a turn than who never had one
    running = Counter(
        session.scalars(
            sa.select(WorkerRow.job_id).where(
                WorkerRow.status == WorkerStatus.BUSY, WorkerRow.id != worker_id
            )
        )
    )
    statement = (
        sa.select(JobRow.id, JobRow.served_at, JobRow.created_at)
        .where(*_siblings(row), has_work(now(session)), not_held(held))
        .order_by(JobRow.created_at, JobRow.id)
    )
    waiting = session.execute(statement).all()
    if not waiting:
        return job_id
    chosen = min(waiting, key=lambda job: (running[job.id], job.served_at or 0.0))
    return str(chosen.id)


def begin(session: Session, job_id: str) -> None:
    """A worker begins a slice of this job."""
    session.execute(sa.update(JobRow).where(JobRow.id == job_id).values(served_at=now(session)))


def another_waits(session: Session, job_id: str, held: Collection[str] = ()) -> bool:
    """Whether a sibling that can be begun has work and no worker."""
    row = session.get(JobRow, job_id)
    if row is None:
        return False
    statement = sa.select(JobRow.id).where(
        *_siblings(row),
        JobRow.id != job_id,
        has_work(now(session)),
        not_held(held),
        ~IS_RUN,
    )
    return session.execute(statement.limit(1)).first() is not None


def _siblings(row: JobRow) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        JobRow.status.in_(jobs.ACTIVE),
        JobRow.priority == row.priority,
        JobRow.model == row.model,
        JobRow.identity_sha256.is_not_distinct_from(row.identity_sha256),
        JobRow.kind != LOAD,
    )
