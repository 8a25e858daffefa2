"""State of the index that every submission needs, read in one statement to save round trips."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import JobStatus
from storage.queue.routing import ALIVE
from storage.queue.workers import LIVE
from storage.tables.models import JobRow, ModelRow, WorkerRow


@dataclass(frozen=True, kw_only=True)
class Admission:
    """State of the queue and the workers for a job of one model and priority."""

    #: when a worker last loaded the model; None for never
    loaded_at: float | None
    #: True if a live worker holds or loads the model
    is_held: bool
    #: last reported memory of each live worker that holds it
    memory: list[dict[str, int]]
    #: place of the job in the queue
    place: int


def _statement() -> sa.Select[Any]:
    """One row for each live worker that holds the model, or one without a worker."""
    loaded_at = sa.select(ModelRow.loaded_at).where(ModelRow.name == sa.bindparam("model")).scalar_subquery()
    not_after = (
        sa.select(sa.func.count())
        .where(JobRow.status == JobStatus.QUEUED, JobRow.priority <= sa.bindparam("priority"))
        .scalar_subquery()
    )
    here = sa.select(sa.literal(1).label("here")).subquery()
    holds = sa.and_(WorkerRow.model == sa.bindparam("model"), WorkerRow.status.in_(ALIVE))
    return sa.select(loaded_at, not_after, WorkerRow.status, WorkerRow.memory).select_from(
        here.outerjoin(WorkerRow, holds)
    )


# built once
_STATEMENT = _statement()


def read(session: Session, model: str, priority: int) -> Admission:
    # through the connection: the place counts the jobs of all owners
    rows = session.connection().execute(_STATEMENT, {"model": model, "priority": priority}).all()
    loaded_at, not_after = rows[0][:2]
    return Admission(
        loaded_at=loaded_at,
        is_held=rows[0][2] is not None,
        memory=[memory for *_, status, memory in rows if status in LIVE and memory],
        place=1 + not_after,
    )
