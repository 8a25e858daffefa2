"""Workers that can run a new job."""

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from storage.queue.routing import ALIVE
from storage.queue.workers import LIVE
from storage.tables.models import WorkerRow


class Admission(NamedTuple):
    """State of the workers for a job of one model."""

    #: True if a live worker holds or loads the model
    is_held: bool
    #: last reported memory of each live worker that holds it
    memory: list[dict[str, int]]


def read(session: Session, model: str) -> Admission:
    holds = sa.select(WorkerRow.status, WorkerRow.memory).where(
        WorkerRow.model == model, WorkerRow.status.in_(ALIVE)
    )
    rows = session.execute(holds).all()
    return Admission(bool(rows), [memory for status, memory in rows if status in LIVE and memory])
