"""The log of a job: one row per transition. Server-Sent Events read it."""

from collections.abc import Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract import resources
from storage.index import row_locks
from storage.index.clock import now
from storage.tables.models import EventRow, JobRow

_WAITING = "actograph_events"
_INSERT = sa.insert(cast(sa.Table, EventRow.__table__))


def append(
    session: Session, job_id: str, event: str, data: dict[str, Any], *, moment: float | None = None
) -> None:
    """Add an entry with a stable name such as `job.started`, at `moment` or now.

    The caller has locked the job. So its entries become visible in the order of their ids, and a follower
    that reads from the last id on misses none. `Database.write` writes them at the end of the transaction.
    """
    if not row_locks.is_locked(session, JobRow, job_id):
        raise RuntimeError(f"{event}: lock job {job_id} first")
    created_at = now(session) if moment is None else moment
    values = {"job_id": job_id, "event": event, "created_at": created_at, "data": data}
    session.info.setdefault(_WAITING, []).append(values)


def write(session: Session) -> None:
    """Insert the entries that `append` collected in this transaction, in order."""
    waiting = session.info.pop(_WAITING, None)
    if waiting:
        # a plain INSERT costs a quarter of SQLAlchemy's unit of work
        session.connection().execute(_INSERT, waiting)


def after(session: Session, job_id: str, event_id: int, limit: int = 500) -> list[resources.Event]:
    """Entries after `event_id` (0: from the start), oldest first."""
    statement = (
        sa.select(EventRow)
        .where(EventRow.job_id == job_id, EventRow.id > event_id)
        .order_by(EventRow.id)
        .limit(limit)
    )
    return [_resource(row) for row in session.scalars(statement)]


def latest(session: Session, job_id: str | None, limit: int) -> list[resources.Event]:
    """The newest entries of a job, or of all jobs, newest first."""
    statement = sa.select(EventRow).order_by(EventRow.id.desc()).limit(limit)
    if job_id is not None:
        statement = statement.where(EventRow.job_id == job_id)
    return [_resource(row) for row in session.scalars(statement)]


def last_progress(session: Session, job_id: str, count: int = 16) -> Sequence[EventRow]:
    """The newest entries of a job's start and progress, oldest first."""
    statement = (
        sa.select(EventRow)
        .where(EventRow.job_id == job_id, EventRow.event.in_(("job.started", "job.progress")))
        .order_by(EventRow.id.desc())
        .limit(count)
    )
    return list(reversed(session.scalars(statement).all()))


def _resource(row: EventRow) -> resources.Event:
    return resources.Event(
        id=row.id, job_id=row.job_id, event=row.event, created_at=row.created_at, data=row.data
    )
