"""The log of a job: one row per transition, read by Server-Sent Events."""

from collections.abc import Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract import resources
from storage.index.clock import now
from storage.tables.models import EventRow

_WAITING = "actograph_events"
_INSERT = sa.insert(cast(sa.Table, EventRow.__table__))


def append(
    session: Session, job_id: str, event: str, data: dict[str, Any], *, moment: float | None = None
) -> None:
    """Add an entry; `event` is a stable name such as `job.started`, `moment` the time where it is known.

    All entries of a transaction are written when it ends, by `Database.write`. The job must be there then:
    the caller holds it, or keeps it (`jobs.keep`).
    """
    created_at = now(session) if moment is None else moment
    values = {"job_id": job_id, "event": event, "created_at": created_at, "data": data}
    session.info.setdefault(_WAITING, []).append(values)


def write(session: Session) -> None:
    """Insert what `append` has gathered in this transaction, in its order."""
    waiting = session.info.pop(_WAITING, None)
    if waiting:
        # every step of every job passes here, and the unit of work costs four times as much as the INSERT
        session.connection().execute(_INSERT, waiting)


def after(session: Session, job_id: str, event_id: int, limit: int = 500) -> list[resources.Event]:
    """Entries that follow `event_id` (0: from the start), oldest first."""
    statement = (
        sa.select(EventRow)
        .where(EventRow.job_id == job_id, EventRow.id > event_id)
        .order_by(EventRow.id)
        .limit(limit)
    )
    return [_resource(row) for row in session.scalars(statement)]


def last_progress(session: Session, job_id: str, count: int = 16) -> Sequence[EventRow]:
    """The newest `job.progress` entries, oldest first."""
    statement = (
        sa.select(EventRow)
        .where(EventRow.job_id == job_id, EventRow.event == "job.progress")
        .order_by(EventRow.id.desc())
        .limit(count)
    )
    return list(reversed(session.scalars(statement).all()))


def _resource(row: EventRow) -> resources.Event:
    return resources.Event(
        id=row.id, job_id=row.job_id, event=row.event, created_at=row.created_at, data=row.data
    )
