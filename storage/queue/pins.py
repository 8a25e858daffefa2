"""Pin a job to the identity of its model, once."""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.models import ModelStructure, PinnedModel
from storage.index import events
from storage.index.database import changed
from storage.jobs import jobs
from storage.queue.workers import LIVE
from storage.tables.models import JobRow, WorkerRow


def of_structure(structure: ModelStructure | None) -> PinnedModel | None:
    """The pin of a job for a model with this structure; None if its identity is unknown."""
    if structure is None or structure.identity is None:
        return None
    return PinnedModel(identity=structure.identity, savepoints=dict(structure.savepoints))


def of_job(row: JobRow) -> PinnedModel | None:
    """The pin of a job; None if no worker has claimed it and its model's identity was unknown."""
    return None if row.pinned is None else PinnedModel.model_validate(row.pinned)


def pin(session: Session, job_id: str, pinned: PinnedModel) -> PinnedModel:
    """Pin a job, unless another worker was faster. Returns the valid pin.

    Raises:
        NotFound: no such job.
    """
    row = jobs.lock(session, job_id)
    first = session.execute(
        sa.update(JobRow)
        .where(JobRow.id == job_id, JobRow.identity_sha256.is_(None))
        .values(pinned=pinned.model_dump(mode="json"), identity_sha256=pinned.identity.sha256)
    )
    if changed(first):
        data = {"identity_sha256": pinned.identity.sha256, **pinned.model_dump(mode="json")}
        events.append(session, job_id, "job.model_identity", data)
        return pinned
    return of_job(row) or pinned


def note_reload(session: Session, job_id: str, pinned: PinnedModel, differences: str) -> None:
    """Log in a job that a worker loaded the pinned model in place of the current one."""
    if jobs.lock_all(session, [job_id]):
        data = {"identity_sha256": pinned.identity.sha256, "differences": differences}
        events.append(session, job_id, "model.reloaded", data)


def another_holds(session: Session, worker_id: str, pinned: PinnedModel) -> bool:
    """True if another live worker has the pinned model in memory."""
    statement = sa.select(WorkerRow.id).where(
        WorkerRow.id != worker_id,
        WorkerRow.status.in_(LIVE),
        WorkerRow.model == pinned.identity.model,
        WorkerRow.identity_sha256 == pinned.identity.sha256,
    )
    return session.execute(statement.limit(1)).first() is not None
