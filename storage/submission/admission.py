"""Admission of a submission in one statement, which saves round trips."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import JobStatus
from storage.queue.routing import ALIVE
from storage.queue.workers import LIVE
from storage.tables.models import ApiKeyRow, JobRow, ModelRow, WorkerRow


@dataclass(frozen=True, kw_only=True)
class Admission:
    """How things stand for a job of one model and priority."""

    #: when a worker last loaded the model; None: never
    loaded_at: float | None
    #: whether a live worker holds the model, or is loading it
    is_held: bool
    #: last reported memory of each live worker that holds it
    memory: list[dict[str, int]]
    #: the place in the queue that the job would take
    place: int
    #: whether some key limits what its owner stores
    has_own_limits: bool


def _statement() -> sa.Select[Any]:
    """One row for each live worker that holds the model, or one without a worker."""
    loaded_at = sa.select(ModelRow.loaded_at).where(ModelRow.name == sa.bindparam("model")).scalar_subquery()
    not_after = (
        sa.select(sa.func.count())
        .where(JobRow.status == JobStatus.QUEUED, JobRow.priority <= sa.bindparam("priority"))
        .scalar_subquery()
    )
    limited = sa.exists().where(ApiKeyRow.quota_bytes.is_not(None))
    here = sa.select(sa.literal(1).label("here")).subquery()
    holds = sa.and_(WorkerRow.model == sa.bindparam("model"), WorkerRow.status.in_(ALIVE))
    return sa.select(loaded_at, not_after, limited, WorkerRow.status, WorkerRow.memory).select_from(
        here.outerjoin(WorkerRow, holds)
    )


# put together once
_STATEMENT = _statement()


def read(session: Session, model: str, priority: int) -> Admission:
    # whose the counted jobs are is not shown
    rows = session.connection().execute(_STATEMENT, {"model": model, "priority": priority}).all()
    loaded_at, not_after, limited = rows[0][:3]
    return Admission(
        loaded_at=loaded_at,
        is_held=rows[0][3] is not None,
        memory=[memory for *_, status, memory in rows if status in LIVE and memory],
        place=1 + not_after,
        has_own_limits=bool(limited),
    )
