"""Chats that have been answered: their jobs are removed after a while, unless they left activations."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.chat_job import KIND
from actograph.contract.resources import JobStatus
from storage import row_locks
from storage.database import now
from storage.models import JobRow, SessionRow

_HAS_SESSION = sa.select(SessionRow.id).where(SessionRow.job_id == JobRow.id).exists()
ENDED = [status for status in JobStatus if status.is_terminal()]


def forgettable(session: Session, seconds: float, *, limit: int) -> Sequence[str]:
    """Chat jobs that ended so long ago and have no session, the oldest first."""
    statement = (
        sa.select(JobRow.id)
        .where(
            JobRow.kind == KIND,
            JobRow.status.in_(ENDED),
            JobRow.finished_at < now(session) - seconds,
            ~_HAS_SESSION,
        )
        .order_by(JobRow.created_at)
        .limit(limit)
    )
    return session.scalars(statement).all()


def forget(session: Session, job_ids: Sequence[str]) -> None:
    """Remove these jobs with their samples and logs; one that was retried since stays."""
    row_locks.lock(session, JobRow, job_ids, to_delete=True)
    session.execute(sa.delete(JobRow).where(JobRow.id.in_(job_ids), JobRow.status.in_(ENDED), ~_HAS_SESSION))
