"""Delete jobs. They disappear at once; `storage.upkeep.reaper` removes their rows and files."""

from typing import Literal

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.chat_job import CHAT
from actograph.contract.errors import Conflict
from actograph.contract.openai_answers import BatchStatus
from actograph.contract.resources import JobStatus
from storage.index import counters, row_locks
from storage.index.database import Database, changed, now
from storage.jobs import jobs
from storage.jobs.jobs import LOAD
from storage.tables.models import BatchRow, JobRow, SessionRow

Kind = Literal["chats", "jobs"]
_ENDED = [status for status in JobStatus if status.is_terminal()]
_OPEN_BATCHES = [status for status in BatchStatus if not status.is_terminal()]
_HAS_SESSION = sa.select(SessionRow.id).where(SessionRow.job_id == JobRow.id).exists()
_HAS_OPEN_BATCH = (
    sa.select(BatchRow.id).where(BatchRow.job_id == JobRow.id, BatchRow.status.in_(_OPEN_BATCHES)).exists()
)
_REMOVABLE = (JobRow.status.in_(_ENDED), ~_HAS_SESSION, ~_HAS_OPEN_BATCH)


def delete(session: Session, job_id: str, *, include_pinned: bool = True) -> None:
    """Delete an ended or queued job with its samples, sessions and events.

    Raises:
        NotFound: no such job.
        Conflict: a worker is running it, or it has pinned sessions and `include_pinned` is False.
    """
    row = jobs.lock_to_delete(session, job_id)
    if row.status == JobStatus.IN_PROGRESS:
        raise Conflict(f"job {job_id} is {row.status}; cancel it first")
    # under the lock: its last samples may have been committed meanwhile
    pinned = sa.func.coalesce(sa.func.sum(sa.case((SessionRow.pinned, 1), else_=0)), 0)
    size = sa.func.coalesce(sa.func.sum(SessionRow.bytes), 0)
    held = session.execute(sa.select(sa.func.count(), size, pinned).where(SessionRow.job_id == job_id)).one()
    if held[2] and not include_pinned:
        raise Conflict(
            f"{held[2]} sessions of job {job_id} are pinned; unpin them, or say include_pinned=true"
        )
    counters.add_removed(session, "deleted", sessions=held[0], size=int(held[1]))
    # the foreign key does so only when the row is removed
    session.execute(sa.update(BatchRow).where(BatchRow.job_id == job_id).values(job_id=None))
    _doom(session, JobRow.id == job_id)
    session.expunge(row)


def delete_old(database: Database, kind: Kind, seconds: float, *, limit: int) -> int:
    """Delete up to `limit` chats, or other jobs, that ended more than `seconds` ago. Returns their number.

    A job with sessions stays, and so does the job of a batch that has not ended. Jobs that load models stay
    too, because the last one has the options of its model.
    """
    of_kind = JobRow.kind == CHAT if kind == "chats" else JobRow.kind.not_in((CHAT, LOAD))
    with database.read() as session:
        old = sa.select(JobRow.id).where(of_kind, JobRow.finished_at < now(session) - seconds, *_REMOVABLE)
        ids = session.scalars(old.order_by(JobRow.created_at).limit(limit)).all()
    if not ids:
        return 0
    with database.write() as session:
        row_locks.lock(session, JobRow, ids, to_delete=True)
        # a job may have changed meanwhile
        return _doom(session, JobRow.id.in_(ids), *_REMOVABLE)


def _doom(session: Session, *which: sa.ColumnElement[bool]) -> int:
    """Hide jobs, whose idempotency keys are free again. Returns their number."""
    statement = sa.update(JobRow).where(*which).values(doomed_at=now(session), idempotency_key=None)
    return changed(session.execute(statement.execution_options(synchronize_session=False)))
