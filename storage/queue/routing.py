"""Workers that can serve a model: those that hold it, and those that may load it."""

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.operations import WorkerStatus
from storage.tables.models import WorkerRow

#: a worker that loads its first model counts as its holder
ALIVE = (WorkerStatus.STARTING, WorkerStatus.READY, WorkerStatus.BUSY)


def held_models(session: Session) -> set[str]:
    """Models that live workers hold or load now."""
    statement = sa.select(WorkerRow.model).where(WorkerRow.status.in_(ALIVE)).distinct()
    return {model for model in session.scalars(statement) if model}


def served_models(session: Session, *where: sa.ColumnElement[bool]) -> set[str]:
    """Models that workers hold or may load: of live workers, or of those that meet the conditions."""
    chosen = where or (WorkerRow.status.in_(ALIVE),)
    rows = session.execute(sa.select(WorkerRow.model, WorkerRow.served).where(*chosen))
    return {name for row in rows for name in (row.model, *(row.served or ())) if name}


def why_unserved(model: str, served: Collection[str]) -> str | None:
    """The reason why no live worker can run jobs of this model; None if one can."""
    if model in served:
        return None
    if not served:
        return "no worker is alive; the job waits until one is"
    return (
        f"no live worker holds {model} or may load it; they serve {', '.join(sorted(served))}. "
        "Start a worker with ACTOGRAPH_MODEL or ACTOGRAPH_ALLOWED_MODELS naming it"
    )
