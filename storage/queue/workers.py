"""Queries about workers and their models."""

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract import base, models, operations
from actograph.contract.errors import ActographError
from actograph.contract.operations import WorkerStatus
from storage.index.database import changed, now
from storage.index.upsert import Upsert
from storage.queue import leases
from storage.tables.models import ModelRow, WorkerRow

_keep_structure = Upsert(ModelRow, "structure", "loaded_at")
LIVE = (WorkerStatus.READY, WorkerStatus.BUSY)


def register(
    session: Session,
    worker_id: str,
    *,
    hostname: str,
    pid: int,
    model: str,
    served: Sequence[str] | None = None,
) -> None:
    """Insert a started worker that loads its model. `served`: its models, by default this one."""
    moment = now(session)
    session.merge(  # a first commit's answer may have been lost
        WorkerRow(
            id=worker_id,
            hostname=hostname,
            pid=pid,
            status=WorkerStatus.STARTING,
            model=model,
            served=list(served) if served is not None else [model],
            started_at=moment,
            heartbeat_at=moment,
        )
    )


def set_ready(
    session: Session, worker_id: str, structure: models.ModelStructure, *, is_as_pinned: bool = False
) -> None:
    """Show a loaded and verified model. Submissions are checked against its structure.

    Args:
        is_as_pinned: True for a model that was loaded for a pinned job. New jobs keep the structure of the
            last other load.
    """
    moment = now(session)
    if not is_as_pinned:
        # two workers may load one model at once
        _keep_structure(
            session,
            [{"name": structure.model, "structure": structure.model_dump(mode="json"), "loaded_at": moment}],
        )
    _update(
        session,
        worker_id,
        # a busy worker may load another model for its job
        status=sa.case((WorkerRow.job_id.is_not(None), WorkerStatus.BUSY), else_=WorkerStatus.READY),
        model=structure.model,
        identity_sha256=structure.identity.sha256 if structure.identity else None,
        device=structure.device,
        heartbeat_at=moment,
    )


def set_failed(session: Session, worker_id: str, error: ActographError) -> None:
    _update(session, worker_id, status=WorkerStatus.SETUP_FAILED, error=error.as_record())


def set_busy(session: Session, worker_id: str, job_id: str, model: str | None = None) -> None:
    """Mark a worker as busy with a job.

    With `model`, the worker counts as its holder before it is loaded, so that no second worker loads it for
    the next job.
    """
    held = {} if model is None else {"model": model}
    _update(session, worker_id, status=WorkerStatus.BUSY, job_id=job_id, heartbeat_at=now(session), **held)


def set_idle(session: Session, worker_id: str, model: str | None = None) -> None:
    """Mark a worker as idle. `model` is its model: "" for none, None for no change."""
    held = {} if model is None else {"model": model}
    _update(session, worker_id, status=WorkerStatus.READY, job_id=None, heartbeat_at=now(session), **held)


def set_offline(session: Session, worker_id: str, error: ActographError | None = None) -> None:
    """Mark a worker as ended, regularly or with an error."""
    reason = {} if error is None else {"error": error.as_record()}
    _update(session, worker_id, status=WorkerStatus.OFFLINE, job_id=None, **reason)


def beat(session: Session, worker_id: str) -> None:
    """Record a sign of life, which renews all leases of the worker."""
    _update(session, worker_id, heartbeat_at=now(session))


def heartbeat(session: Session, worker_id: str, memory: dict[str, int] | None) -> None:
    """Record a sign of life. An offline worker becomes ready again. None keeps the old `memory`."""
    reported = {} if memory is None else {"memory": memory}
    _update(session, worker_id, heartbeat_at=now(session), **reported)
    session.execute(
        sa.update(WorkerRow)
        .where(WorkerRow.id == worker_id, WorkerRow.status == WorkerStatus.OFFLINE)
        .values(status=WorkerStatus.READY)
    )


def bury(session: Session, hostname: str, is_alive: Callable[[int], bool]) -> int:
    """End the workers of this host whose process is gone; take back what they held. Returns their number."""
    alive = WorkerRow.status.in_((*LIVE, WorkerStatus.STARTING))
    known = session.execute(
        sa.select(WorkerRow.id, WorkerRow.pid).where(WorkerRow.hostname == hostname, alive)
    ).all()
    dead = [row.id for row in known if not is_alive(row.pid)]
    if not dead:
        return 0
    leases.take_back(session, dead)
    ended = session.execute(
        sa.update(WorkerRow)
        .where(WorkerRow.id.in_(dead), alive)
        .values(status=WorkerStatus.OFFLINE, job_id=None)
    )
    return changed(ended)


def expire(session: Session, silent_seconds: float) -> int:
    """Mark live workers without a heartbeat for `silent_seconds` as offline. Returns their number."""
    silent = _unwritten(
        session,
        WorkerRow.status.in_((*LIVE, WorkerStatus.STARTING)),
        WorkerRow.heartbeat_at < now(session) - silent_seconds,
    )
    result = session.execute(
        sa.update(WorkerRow).where(WorkerRow.id.in_(silent)).values(status=WorkerStatus.OFFLINE, job_id=None)
    )
    return changed(result)


def forget(session: Session, older_than_seconds: float) -> None:
    """Delete the rows of workers that ended long ago."""
    gone = _unwritten(
        session,
        WorkerRow.status.in_((WorkerStatus.OFFLINE, WorkerStatus.SETUP_FAILED)),
        WorkerRow.heartbeat_at < now(session) - older_than_seconds,
    )
    session.execute(sa.delete(WorkerRow).where(WorkerRow.id.in_(gone)))


def find(session: Session) -> Sequence[WorkerRow]:
    """All workers, the newest first."""
    return session.scalars(sa.select(WorkerRow).order_by(WorkerRow.started_at.desc(), WorkerRow.id)).all()


def busy_job_ids(session: Session) -> Sequence[str]:
    """Jobs of busy workers."""
    statement = sa.select(WorkerRow.job_id).where(
        WorkerRow.status == WorkerStatus.BUSY, WorkerRow.job_id.is_not(None)
    )
    return [job_id for job_id in session.scalars(statement) if job_id is not None]


def loaded_models(session: Session) -> set[str]:
    """Names of the models of live workers."""
    statement = sa.select(WorkerRow.model).where(WorkerRow.status.in_(LIVE))
    return {name for name in session.scalars(statement) if name is not None}


def model_loaded_last(session: Session) -> str | None:
    """The model of a live worker that was loaded last."""
    statement = (
        sa.select(ModelRow.name)
        .join(WorkerRow, WorkerRow.model == ModelRow.name)
        .where(WorkerRow.status.in_(LIVE))
        .order_by(ModelRow.loaded_at.desc())
    )
    return session.scalars(statement.limit(1)).first()


def structure(session: Session, model: str) -> models.ModelStructure | None:
    """The structure of a model; None if no worker ever loaded it."""
    row = session.get(ModelRow, model)
    return models.ModelStructure.model_validate(row.structure) if row else None


def loaded_at(session: Session, model: str) -> float | None:
    """Time of the last load of a model."""
    return session.scalar(sa.select(ModelRow.loaded_at).where(ModelRow.name == model))


def resource(row: WorkerRow) -> operations.Worker:
    return operations.Worker(
        id=row.id,
        status=WorkerStatus(row.status),
        model=row.model,
        serves=row.served or [],
        hostname=row.hostname,
        pid=row.pid,
        device=row.device,
        started_at=int(row.started_at),
        last_heartbeat_at=int(row.heartbeat_at),
        job_id=row.job_id,
        error=base.ErrorRecord.model_validate(row.error) if row.error else None,
        memory=row.memory or {},
    )


def _unwritten(session: Session, *where: sa.ColumnElement[bool]) -> Sequence[str]:
    """Lock workers that meet the conditions. Skips workers whose row is locked by another transaction."""
    found = sa.select(WorkerRow.id).where(*where).order_by(WorkerRow.id)
    return session.scalars(found.with_for_update(skip_locked=True)).all()


def _update(session: Session, worker_id: str, **values: Any) -> None:
    session.execute(sa.update(WorkerRow).where(WorkerRow.id == worker_id).values(**values))
