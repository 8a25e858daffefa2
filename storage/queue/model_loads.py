"""Requests to load a model: jobs of kind `load`, without samples.

They are queued, woken, cancelled and listed like all other jobs.
"""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract import base, resources
from actograph.contract.errors import ModelRefused, NotFound
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.models import ModelStructure
from actograph.contract.resources import JobStatus
from storage.index import events, notices, row_locks
from storage.index.database import now
from storage.index.ids import new_job_id
from storage.jobs import jobs
from storage.queue import workers
from storage.tables.models import JobRow

#: more urgent than all other jobs
PRIORITY = 0
#: a load fails after its worker's process ended so often
MAX_ATTEMPTS = 2
LOADING = "model.loading"


def create(session: Session, model: str, options: ModelLoadOptions) -> JobRow:
    """Insert a request. The caller commits, then wakes the workers."""
    row = JobRow(
        id=new_job_id(),
        kind=jobs.LOAD,
        status=JobStatus.QUEUED,
        model=model,
        spec=options.model_dump(mode="json"),
        priority=PRIORITY,
        total=None,
        pending=1,
        completed=0,
        failed=0,
        created_at=now(session),
        hooks=[],
    )
    session.add(row)
    session.flush()
    row_locks.note_held(session, JobRow, row.id)
    events.append(session, row.id, "job.queued", {"total": None})
    notices.note(session, model)
    return row


def begin(session: Session, row: JobRow, worker_id: str) -> bool:
    """Begin a claimed request. Returns False if it ended.

    A request that killed its workers fails here.
    """
    if jobs.lock_active(session, row.id) is None:
        return False
    if len(_attempts(session, row.id)) >= MAX_ATTEMPTS:
        error = ModelRefused(
            f"the worker's process ended {MAX_ATTEMPTS} times while it loaded {row.model}, most likely "
            "because it ran out of memory; choose a smaller dtype or model"
        )
        jobs.fail(session, row.id, error)
        return False
    events.append(session, row.id, LOADING, {"worker_id": worker_id, "model": row.model})
    return True


def complete(session: Session, job_id: str, structure: ModelStructure) -> None:
    """Complete the request of a loaded model, unless it was cancelled. Its options are in force now."""
    if jobs.lock_active(session, job_id) is not None:
        workers.keep_structure(session, structure)
        jobs.set_total(session, job_id, 1)
        jobs.lock(session, job_id).completed = 1
        jobs.end_if_done(session, job_id)


def loaded(session: Session, worker_id: str, structure: ModelStructure, options: ModelLoadOptions) -> None:
    """Show the model that a worker has loaded with `options`."""
    is_in_force = options == options_in_force(session, structure.model)
    workers.set_ready(session, worker_id, structure, is_in_force=is_in_force)


def options_in_force(session: Session, model: str) -> ModelLoadOptions:
    """Options of the last successful load of a model; the defaults if there is none."""
    statement = (
        sa.select(JobRow.spec)
        .where(JobRow.kind == jobs.LOAD, JobRow.model == model, JobRow.status == JobStatus.COMPLETED)
        .order_by(JobRow.finished_at.desc(), JobRow.id)
        .limit(1)
    )
    spec = session.execute(statement).scalar_one_or_none()
    return ModelLoadOptions() if spec is None else ModelLoadOptions.model_validate(spec)


def get(session: Session, job_id: str) -> JobRow:
    """Raises NotFound."""
    row = jobs.get(session, job_id)
    if row.kind != jobs.LOAD:
        raise NotFound(f"job {job_id} loads no model; it is at /v1/jobs/{job_id}")
    return row


def resource(session: Session, row: JobRow) -> resources.ModelLoad:
    attempts = _attempts(session, row.id)
    return resources.ModelLoad(
        id=row.id,
        model=row.model,
        status=JobStatus(row.status),
        created_at=int(row.created_at),
        started_at=int(row.started_at) if row.started_at is not None else None,
        finished_at=int(row.finished_at) if row.finished_at is not None else None,
        worker_id=attempts[-1] if attempts else None,
        options=row.spec,
        ok=row.status == JobStatus.COMPLETED,
        savepoints=[str(one["name"]) for one in row.spec.get("savepoints") or ()],
        error=base.ErrorRecord.model_validate(row.error) if row.error else None,
    )


def _attempts(session: Session, job_id: str) -> list[str]:
    """Workers that started the load, in order."""
    found = [e for e in events.after(session, job_id, 0, limit=100) if e.event == LOADING]
    return [str(event.data["worker_id"]) for event in found]
