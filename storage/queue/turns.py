"""Turns among jobs of one priority and one model.

The job with the fewest workers goes first, then the one served longest ago. The order of messages would not
be fair, because jobs have different numbers of messages.
"""

from collections import Counter
from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.operations import WorkerStatus
from storage.index.database import now
from storage.jobs import jobs
from storage.jobs.jobs import LOAD
from storage.queue.waiting import IS_RUN, can_start
from storage.tables.models import JobRow, WorkerRow


def next_job(session: Session, job_id: str, worker_id: str, held: Collection[str] = ()) -> str:
    """The job that gets the turn of `job_id`: itself, or a sibling that has waited longer.

    Args:
        worker_id: worker that takes the turn; its current job does not count as running.
        held: owners whose quota is used up; their jobs do not start.
    """
    row = jobs.get(session, job_id)
    if row.served_at is None:
        return job_id  # a job without any turn goes first
    running = Counter(
        session.scalars(
            sa.select(WorkerRow.job_id).where(
                WorkerRow.status == WorkerStatus.BUSY, WorkerRow.id != worker_id
            )
        )
    )
    statement = (
        sa.select(JobRow.id, JobRow.served_at, JobRow.created_at)
        .where(*can_start(session, held), *_siblings(row))
        .order_by(JobRow.created_at, JobRow.id)
    )
    waiting = session.execute(statement).all()
    if not waiting:
        return job_id
    chosen = min(waiting, key=lambda job: (running[job.id], job.served_at or 0.0))
    return str(chosen.id)


def begin(session: Session, job_id: str) -> None:
    """Record that a worker begins a slice of a job."""
    session.execute(sa.update(JobRow).where(JobRow.id == job_id).values(served_at=now(session)))


def another_waits(session: Session, job_id: str, held: Collection[str] = ()) -> bool:
    """True if a sibling has work and no worker."""
    row = session.get(JobRow, job_id)
    if row is None:
        return False
    statement = sa.select(JobRow.id).where(
        *can_start(session, held), *_siblings(row), JobRow.id != job_id, ~IS_RUN
    )
    return session.execute(statement.limit(1)).first() is not None


def _siblings(row: JobRow) -> tuple[sa.ColumnElement[bool], ...]:
    """Conditions on jobs that take turns with this one."""
    return (
        JobRow.priority == row.priority,
        JobRow.model == row.model,
        JobRow.identity_sha256.is_not_distinct_from(row.identity_sha256),
        JobRow.kind != LOAD,
    )
