"""Workers that can serve a model: those that hold it, and those that may load it."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import WorkerStatus
from storage.tables.models import WorkerRow

#: a worker that loads its first model counts as its holder
ALIVE = (WorkerStatus.STARTING, WorkerStatus.READY, WorkerStatus.BUSY)

# compiled once: every submission runs it
_HOLDER = (
    sa.select(WorkerRow.id)
    .where(WorkerRow.model == sa.bindparam("held"), WorkerRow.status.in_(ALIVE))
    .limit(1)
)


def is_held(session: Session, model: str) -> bool:
    """Whether a live worker holds this model, or is loading it."""
    return session.connection().execute(_HOLDER, {"held": model}).first() is not None


def held_models(session: Session) -> set[str]:
    """Models that live workers hold or load now."""
    statement = sa.select(WorkerRow.model).where(WorkerRow.status.in_(ALIVE)).distinct()
    return {model for model in session.scalars(statement) if model}


def has_idle_holder(session: Session, model: str) -> bool:
    """Whether a worker that holds this model has nothing to do."""
    statement = sa.select(WorkerRow.id).where(
        WorkerRow.model == model, WorkerRow.status == WorkerStatus.READY
    )
    return session.execute(statement.limit(1)).first() is not None


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The live workers at one moment."""

    #: models that a live worker holds or may load
    served: Collection[str]

    def why_unserved(self, model: str) -> str | None:
        """The reason why no worker can run jobs of this model; None if one can."""
        if model in self.served:
            return None
        if not self.served:
            return "no worker is alive; the job waits until one is"
        return (
            f"no live worker holds {model} or may load it; they serve {', '.join(sorted(self.served))}. "
            "Start a worker with ACTOGRAPH_MODEL or ACTOGRAPH_ALLOWED_MODELS naming it"
        )


def fleet(session: Session) -> Fleet:
    """Read all live workers."""
    rows = session.execute(sa.select(WorkerRow.model, WorkerRow.served).where(WorkerRow.status.in_(ALIVE)))
    return Fleet(served={name for row in rows for name in (row.model, *(row.served or ())) if name})


def why_unserved(session: Session, model: str) -> str | None:
    """`Fleet.why_unserved`; reads all workers only if none holds the model."""
    return None if is_held(session, model) else fleet(session).why_unserved(model)


def within_reach(session: Session, held: str | None, may_load: Iterable[str]) -> set[str]:
    """Models whose jobs a worker runs: the one it holds, and those it may load that no worker holds."""
    others = {model for model in may_load if model != held}
    if others:
        others -= held_models(session)
    return others | ({held} if held else set())
