"""Retention: ended jobs without sessions are deleted after some time, chats sooner than others.

A job with sessions stays with its samples and events. So does the job of a batch that has not ended. Jobs
that load models stay too, because the last one has the options of its model.
"""

from collections.abc import Sequence
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.chat_job import CHAT
from actograph.contract.openai_answers import BatchStatus
from actograph.contract.resources import JobStatus
from storage.index import row_locks
from storage.index.database import now
from storage.jobs import job_deletion
from storage.jobs.jobs import LOAD
from storage.tables.models import BatchRow, JobRow, SessionRow

Kind = Literal["chats", "jobs"]
ENDED = [status for status in JobStatus if status.is_terminal()]
_OPEN_BATCHES = [status for status in BatchStatus if not status.is_terminal()]
_HAS_SESSION = sa.select(SessionRow.id).where(SessionRow.job_id == JobRow.id).exists()
_HAS_OPEN_BATCH = (
    sa.select(BatchRow.id).where(BatchRow.job_id == JobRow.id, BatchRow.status.in_(_OPEN_BATCHES)).exists()
)
_REMOVABLE = (JobRow.status.in_(ENDED), JobRow.deleted_at.is_(None), ~_HAS_SESSION, ~_HAS_OPEN_BATCH)


def old(session: Session, kind: Kind, seconds: float, *, limit: int) -> Sequence[str]:
    """Removable chats, or other jobs, that ended more than `seconds` ago, oldest first."""
    of_kind = JobRow.kind == CHAT if kind == "chats" else JobRow.kind.not_in((CHAT, LOAD))
    statement = sa.select(JobRow.id).where(of_kind, JobRow.finished_at < now(session) - seconds, *_REMOVABLE)
    return session.scalars(statement.order_by(JobRow.created_at).limit(limit)).all()


def remove(session: Session, kind: Kind, job_ids: Sequence[str]) -> None:
    """Delete chats, or other jobs, with their samples and events, unless they changed meanwhile."""
    held = row_locks.lock(session, JobRow, job_ids, to_delete=True)
    removable = (JobRow.id.in_([row.id for row in held]), *_REMOVABLE)
    if kind == "chats":  # few rows each, so one statement removes them all
        session.execute(sa.delete(JobRow).where(*removable))
        return
    for job_id in session.scalars(sa.select(JobRow.id).where(*removable).order_by(JobRow.id)).all():
        job_deletion.delete(session, job_id)
