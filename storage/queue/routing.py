"""Which queue a job's message goes to, and who could serve a model.

Each model has two queues. One is read by the workers that hold the model, so that its jobs go to them and
to nobody else. The other is read by all that may load it, and is used while nobody holds it: whoever takes
such a message loads the model. The rows of the workers decide, so that a message can be sent by anyone.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import WorkerStatus
from storage.tables.models import JobRow, WorkerRow

#: every queue's name begins with it
PREFIX = "actograph"
#: a worker that loads its first model counts as its holder: what is sent to it waits until it is ready
ALIVE = (WorkerStatus.STARTING, WorkerStatus.READY, WorkerStatus.BUSY)
LOAD_KIND = "load"


def holders_queue(model: str) -> str:
    """Read by the workers that hold this model."""
    return f"{PREFIX}.run.{model}"


def loaders_queue(model: str) -> str:
    """Read by the workers that may load this model, those that hold it among them."""
    return f"{PREFIX}.load.{model}"


def queue_of(session: Session, model: str, kind: str) -> str:
    """Where a message about a job of this model and kind is read by somebody who can serve it."""
    if kind != LOAD_KIND and is_held(session, model):
        return holders_queue(model)
    return loaders_queue(model)


def queue_of_job(session: Session, job_id: str) -> str | None:
    """`queue_of` for a job; None where it was deleted."""
    row = session.execute(sa.select(JobRow.model, JobRow.kind).where(JobRow.id == job_id)).one_or_none()
    return None if row is None else queue_of(session, row.model, row.kind)


# asked for each job that is submitted or woken, so it is not put together anew each time
_HOLDER = (
    sa.select(WorkerRow.id)
    .where(WorkerRow.model == sa.bindparam("held"), WorkerRow.status.in_(ALIVE))
    .limit(1)
)


def is_held(session: Session, model: str) -> bool:
    """Whether a live worker holds this model, or is loading it."""
    return session.connection().execute(_HOLDER, {"held": model}).first() is not None


def held_models(session: Session) -> set[str]:
    """Every model that a live worker holds or is loading."""
    statement = sa.select(WorkerRow.model).where(WorkerRow.status.in_(ALIVE)).distinct()
    return {model for model in session.scalars(statement) if model}


def idle_holders(session: Session, model: str) -> int:
    """How many workers hold this model and have nothing to do."""
    statement = sa.select(sa.func.count()).where(
        WorkerRow.model == model, WorkerRow.status == WorkerStatus.READY
    )
    return int(session.execute(statement).scalar_one())


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The live workers as one look found them."""

    #: models that somebody holds or is loading
    held: Collection[str]
    #: models that somebody holds or may load
    served: Collection[str]
    #: model -> workers that hold it and have nothing to do
    idle: Counter[str]

    def queues_read(self, model: str) -> list[str]:
        """The queues in which a message about this model comes to somebody, once a worker serves it."""
        held = [holders_queue(model)] if model in self.held else []
        return [*held, loaders_queue(model)]

    def why_unserved(self, model: str) -> str | None:
        """Why a job of this model waits in vain, in words; None where somebody can serve it."""
        if model in self.served:
            return None
        if not self.served:
            return "no worker is alive; the job waits until one is"
        return (
            f"no live worker holds {model} or may load it; they serve {', '.join(sorted(self.served))}. "
            "Start a worker with ACTOGRAPH_MODEL or ACTOGRAPH_ALLOWED_MODELS naming it"
        )


def fleet(session: Session) -> Fleet:
    """One look at all live workers."""
    rows = session.execute(
        sa.select(WorkerRow.status, WorkerRow.model, WorkerRow.served).where(WorkerRow.status.in_(ALIVE))
    ).all()
    held = {row.model for row in rows if row.model}
    return Fleet(
        held=held,
        served=held.union(*(row.served or [] for row in rows)),
        idle=Counter(row.model for row in rows if row.status == WorkerStatus.READY and row.model),
    )


def why_unserved(session: Session, model: str) -> str | None:
    """As `Fleet.why_unserved`, without a look at all workers where one holds the model."""
    return None if is_held(session, model) else fleet(session).why_unserved(model)


def within_reach(session: Session, held: str | None, may_load: Iterable[str]) -> set[str]:
    """The models whose jobs a worker is there for: its own, and those it may load that nobody holds."""
    others = {model for model in may_load if model != held}
    if others:
        others -= held_models(session)
    return others | ({held} if held else set())
