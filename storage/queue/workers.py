"""Workers: what they hold, which models they serve, and jobs that none of them can serve."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract import base, models, operations
from actograph.contract.analyses import ANALYSIS
from actograph.contract.errors import ActographError
from actograph.contract.operations import WorkerStatus
from storage.index import events
from storage.index.database import changed, now
from storage.index.ids import among
from storage.index.upsert import Upsert
from storage.jobs import jobs
from storage.queue import leases
from storage.tables.models import EventRow, JobRow, ModelRow, WorkerRow

_keep_structure = Upsert(ModelRow, "structure", "loaded_at")
LIVE = (WorkerStatus.READY, WorkerStatus.BUSY)
#: a worker that loads its first model counts as its holder
ALIVE = (WorkerStatus.STARTING, *LIVE)
WAITING = "job.waiting"
#: jobs that one round of upkeep logs
MOST_AT_ONCE = 500


def register(
    session: Session,
    worker_id: str,
    *,
    hostname: str,
    pid: int,
    pid_namespace: str | None = None,
    process_started: int | None = None,
    model: str,
    served: Sequence[str] | None = None,
) -> None:
    """Insert a started worker that loads its model.

    Args:
        pid_namespace: where `pid` counts. Without it or `process_started`, only the heartbeat shows its end.
        process_started: start of the process in clock ticks since boot.
        served: its models, by default this one.
    """
    moment = now(session)
    session.merge(  # a first commit's answer may have been lost
        WorkerRow(
            id=worker_id,
            hostname=hostname,
            pid=pid,
            pid_namespace=pid_namespace,
            process_started=process_started,
            status=WorkerStatus.STARTING,
            model=model,
            served=list(served) if served is not None else [model],
            started_at=moment,
            heartbeat_at=moment,
        )
    )


def set_ready(
    session: Session, worker_id: str, structure: models.ModelStructure, *, is_in_force: bool = True
) -> None:
    """Show a loaded and verified model.

    Args:
        is_in_force: False for a model that was loaded for a pinned job, or whose options others replaced
            meanwhile. New jobs keep the structure of the last other load.
    """
    if is_in_force:
        keep_structure(session, structure)
    _update(
        session,
        worker_id,
        # a busy worker may load another model for its job
        status=sa.case((WorkerRow.job_id.is_not(None), WorkerStatus.BUSY), else_=WorkerStatus.READY),
        model=structure.model,
        identity_sha256=structure.identity.sha256 if structure.identity else None,
        device=structure.device,
        heartbeat_at=now(session),
    )


def keep_structure(session: Session, structure: models.ModelStructure) -> None:
    """Check submissions against this structure. Two workers may load one model at once."""
    row = {"structure": structure.model_dump(mode="json"), "loaded_at": now(session)}
    _keep_structure(session, [{"name": structure.model} | row])


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


def heartbeat(session: Session, worker_id: str, memory: dict[str, int] | None = None) -> bool:
    """Record a sign of life, which renews all leases of the worker. An offline worker becomes ready again.

    Returns False if the index has forgotten the worker.

    Args:
        memory: its memory in bytes; None keeps the last report.
    """
    reported = {} if memory is None else {"memory": memory}
    is_back = WorkerRow.status == WorkerStatus.OFFLINE
    status = sa.case((is_back, WorkerStatus.READY), else_=WorkerRow.status)
    return _update(session, worker_id, heartbeat_at=now(session), status=status, **reported) == 1


def declare_lost(session: Session, pid_namespace: str | None, has_ended: Callable[[int, int], bool]) -> int:
    """Mark workers of a PID namespace whose process has ended as offline, and take back their samples.

    Workers of other namespaces, and those whose namespace or start is unknown, are left to their heartbeat.
    Returns the number of ended workers.

    Args:
        has_ended: takes pid and start of a process.
    """
    if pid_namespace is None:
        return 0
    known = sa.select(WorkerRow.id, WorkerRow.pid, WorkerRow.process_started)
    known = known.where(WorkerRow.pid_namespace == pid_namespace, WorkerRow.process_started.is_not(None))
    known = known.where(WorkerRow.status.in_(ALIVE))
    dead = [row.id for row in session.execute(known) if has_ended(row.pid, row.process_started)]
    if not dead:
        return 0
    leases.take_back(session, dead)
    return _end(session, dead)


def expire(session: Session, silent_seconds: float) -> int:
    """Mark live workers without a heartbeat for `silent_seconds` as offline. Returns their number."""
    is_silent = WorkerRow.heartbeat_at < now(session) - silent_seconds
    return _end(session, _unwritten(session, WorkerRow.status.in_(ALIVE), is_silent))


def forget(session: Session, older_than_seconds: float) -> None:
    """Delete the rows of workers that ended long ago."""
    gone = _unwritten(
        session,
        WorkerRow.status.in_((WorkerStatus.OFFLINE, WorkerStatus.SETUP_FAILED)),
        WorkerRow.heartbeat_at < now(session) - older_than_seconds,
    )
    session.execute(sa.delete(WorkerRow).where(among(session, WorkerRow.id, gone)))


def find(session: Session) -> Sequence[WorkerRow]:
    """All workers, the newest first."""
    return session.scalars(sa.select(WorkerRow).order_by(WorkerRow.started_at.desc(), WorkerRow.id)).all()


def holders(session: Session, model: str) -> Sequence[WorkerRow]:
    """Workers that hold a model or load it now."""
    return session.scalars(
        sa.select(WorkerRow).where(WorkerRow.model == model, WorkerRow.status.in_(ALIVE))
    ).all()


def another_holds(session: Session, worker_id: str, pinned: models.PinnedModel) -> bool:
    """True if another live worker has the pinned model in memory."""
    return any(
        row.id != worker_id and row.identity_sha256 == pinned.identity.sha256 and row.status in LIVE
        for row in holders(session, pinned.identity.model)
    )


def held_models(session: Session, statuses: Collection[WorkerStatus] = ALIVE) -> set[str]:
    """Models that workers hold or load now. With `LIVE`, only the loaded ones."""
    statement = sa.select(WorkerRow.model).where(WorkerRow.status.in_(statuses)).distinct()
    return {model for model in session.scalars(statement) if model} - {ANALYSIS}


def served_models(session: Session, *where: sa.ColumnElement[bool]) -> dict[str, str | None]:
    """Models that workers hold or may load: of live workers, or of those that meet the conditions.

    The model of analysis workers is `ANALYSIS`.

    Returns:
        model -> the trouble that keeps all its workers from starting samples; None if one has none.
    """
    chosen = where or (WorkerRow.status.in_(ALIVE),)
    columns = (WorkerRow.model, WorkerRow.served, WorkerRow.error)
    found: dict[str, str | None] = {}
    for row in session.execute(sa.select(*columns).where(*chosen)):
        trouble = str(row.error["message"]) if row.error else None
        for name in filter(None, (row.model, *(row.served or ()))):
            found[name] = trouble if trouble is None else found.get(name, trouble)
    return found


def set_trouble(session: Session, worker_id: str, error: ActographError | None) -> None:
    """Show why a live worker starts no samples; None ends it."""
    _update(session, worker_id, error=None if error is None else error.as_record())


def why_unserved(model: str, served: Mapping[str, str | None]) -> str | None:
    """The reason why no live worker can run jobs of this model; None if one can."""
    if model in served:
        return served[model]
    if model == ANALYSIS:
        return "no analysis worker is alive; `actograph up` starts one, as does `actograph service analysis`"
    others = served.keys() - {ANALYSIS}
    if not others:
        return "no worker is alive; the job waits until one is"
    return (
        f"no live worker holds {model} or may load it; they serve {', '.join(sorted(others))}. "
        "Start a worker with ACTOGRAPH_MODEL or ACTOGRAPH_ALLOWED_MODELS naming it"
    )


def unserved_jobs(session: Session, patience_seconds: float) -> Sequence[str]:
    """Active jobs whose model had no worker for `patience_seconds`, if their log does not say so yet.

    Shorter gaps are left out: workers may be restarting.
    """
    since = now(session) - patience_seconds
    served = {*served_models(session), *served_models(session, WorkerRow.heartbeat_at > since)}
    logged = sa.exists().where(EventRow.job_id == JobRow.id, EventRow.event == WAITING)
    statement = sa.select(JobRow.id).where(JobRow.status.in_(jobs.ACTIVE), JobRow.created_at <= since)
    statement = statement.where(JobRow.model.not_in(served), ~logged)
    return session.scalars(statement.order_by(JobRow.created_at, JobRow.id).limit(MOST_AT_ONCE)).all()


def log_unserved(session: Session, job_ids: Sequence[str]) -> None:
    """Log `job.waiting` with the reason in jobs that no worker can serve."""
    served = served_models(session)
    for row in jobs.lock_all(session, job_ids):
        if reason := why_unserved(row.model, served):
            events.append(session, row.id, WAITING, {"reason": reason})


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


def work_of(row: WorkerRow) -> tuple[int, int]:
    """Tokens and milliseconds in passes between the worker's last two heartbeats; zeros while it is idle."""
    told = row.memory or {}
    return told.get("window_computed_tokens", 0), told.get("window_pass_milliseconds", 0)


def _activity(told: Mapping[str, int]) -> operations.WorkerActivity | None:
    """The work that a heartbeat tells; None without any."""
    window = told.get("window_milliseconds", 0) / 1000
    if window <= 0 or "device_total_bytes" not in told:
        return None
    return operations.WorkerActivity(
        seconds=window,
        tokens_per_second=told.get("window_computed_tokens", 0) / window,
        generated_per_second=told.get("window_generated_tokens", 0) / window,
        # the engine's counts are up to a second old
        pass_share=min(1.0, told.get("window_pass_milliseconds", 0) / 1000 / window),
    )


def resource(row: WorkerRow) -> operations.Worker:
    told = row.memory or {}
    return operations.Worker(
        id=row.id,
        status=WorkerStatus(row.status),
        model=row.model,
        serves=row.served or [],
        hostname=row.hostname,
        pid=row.pid,
        pid_namespace=row.pid_namespace,
        device=row.device,
        started_at=int(row.started_at),
        last_heartbeat_at=int(row.heartbeat_at),
        job_id=row.job_id,
        error=base.ErrorRecord.model_validate(row.error) if row.error else None,
        memory={name: value for name, value in told.items() if not name.startswith("window_")},
        activity=_activity(told) if row.status in LIVE else None,
    )


def _unwritten(session: Session, *where: sa.ColumnElement[bool]) -> Sequence[str]:
    """Lock workers that meet the conditions. Skips workers whose row is locked by another transaction."""
    found = sa.select(WorkerRow.id).where(*where).order_by(WorkerRow.id)
    return session.scalars(found.with_for_update(skip_locked=True)).all()


def _end(session: Session, worker_ids: Sequence[str]) -> int:
    ended = sa.update(WorkerRow).where(among(session, WorkerRow.id, worker_ids), WorkerRow.status.in_(ALIVE))
    return changed(session.execute(ended.values(status=WorkerStatus.OFFLINE, job_id=None)))


def _update(session: Session, worker_id: str, **values: Any) -> int:
    return changed(session.execute(sa.update(WorkerRow).where(WorkerRow.id == worker_id).values(**values)))
