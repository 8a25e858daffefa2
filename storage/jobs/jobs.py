"""Queries about jobs. Callers open and commit the transaction."""

from collections.abc import Collection, Sequence
from typing import Any, Unpack, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import ActographError, Conflict
from actograph.contract.models import PinnedModel
from actograph.contract.resources import JobStatus, SampleStatus
from actograph.contract.specs import JobSpecBase
from storage.index import events, pages, row_locks
from storage.index.database import now
from storage.index.ids import new_job_id
from storage.index.pages import PageOptions
from storage.index.visible import of_everyone
from storage.jobs.request_keys import RequestKey
from storage.tables.models import FileRow, JobRow, JobTagRow, SampleRow

#: kind of a job that loads a model, see `storage.queue.model_loads`; it has no samples
LOAD = "load"
ACTIVE = (JobStatus.QUEUED, JobStatus.IN_PROGRESS)
OPEN = (SampleStatus.PENDING, SampleStatus.SUSPECT, SampleStatus.LEASED)
#: a job's progress is logged once in so many seconds at most; its end is always logged
EVENT_SECONDS = 1.0
_INSERT = sa.insert(cast(sa.Table, JobRow.__table__))
_INSERT_TAGS = sa.insert(cast(sa.Table, JobTagRow.__table__))


def create(
    session: Session,
    *,
    kind: str,
    model: str,
    spec: JobSpecBase,
    hooks: Sequence[str] | None,
    total: int | None,
    owner: str = "",
    pinned: PinnedModel | None = None,
    request_key: RequestKey | None = None,
) -> JobRow:
    """Insert a queued job. The session does not track the returned row.

    Args:
        request_key: see `storage.jobs.request_keys`.
        total: number of samples; None until a worker has read the dataset.
        pinned: None until the model's identity is known.
    """
    moment = now(session)
    values: dict[str, Any] = {
        "id": new_job_id(),
        "kind": kind,
        "status": JobStatus.QUEUED,
        "model": model,
        # the samples of a capture job have its inputs; a copy would slow down every list
        "spec": spec.model_dump(mode="json", exclude={"inputs"}),
        "priority": spec.priority,
        "total": total,
        "pending": 1 if total is None else total,
        "served_at": 0.0,
        "logged_at": 0.0,
        "completed": 0,
        "failed": 0,
        "created_at": moment,
        "deadline_at": deadline(spec.deadline_seconds, moment),
        "hooks": list(hooks) if hooks is not None else None,
        "owner": owner,
        "pinned": None if pinned is None else pinned.model_dump(mode="json"),
        "identity_sha256": None if pinned is None else pinned.identity.sha256,
        "failed_in_a_row": 0,
        "idempotency_key": request_key and request_key.key,
        "idempotency_sha256": request_key and request_key.sha256,
    }
    connection = session.connection()
    connection.execute(_INSERT, values)
    row_locks.note_new(session, JobRow, values["id"])
    if spec.tags:
        tags = [{"job_id": values["id"], "tag": tag} for tag in dict.fromkeys(spec.tags)]
        connection.execute(_INSERT_TAGS, tags)
    events.append(session, values["id"], "job.queued", {"total": total}, moment=moment)
    return JobRow(**values)


def get(session: Session, job_id: str) -> JobRow:
    """Raises NotFound."""
    return row_locks.one([session.get(JobRow, job_id)], f"job {job_id}")


def find(
    session: Session,
    *,
    id_prefix: str | None = None,
    status: JobStatus | None = None,
    kind: str | None = None,
    tag: str | None = None,
    **page: Unpack[PageOptions],
) -> tuple[Sequence[JobRow], bool]:
    """One page of jobs, newest first by default."""
    statement = sa.select(JobRow)
    if id_prefix is not None:
        statement = statement.where(pages.id_begins(JobRow.id, id_prefix))
    if status is not None:
        statement = statement.where(JobRow.status == status)
    if kind is not None:
        statement = statement.where(JobRow.kind == kind)
    if tag is not None:
        statement = statement.join(JobTagRow, JobTagRow.job_id == JobRow.id).where(JobTagRow.tag == tag)
    return pages.fetch(session, statement, JobRow.created_at, JobRow.id, **page)


def lock(session: Session, job_id: str) -> JobRow:
    """Lock a job and return its current state. A transaction does so before it changes rows of the job.

    See `storage.index.row_locks`.

    Raises:
        NotFound: no such job.
    """
    return row_locks.one(row_locks.lock(session, JobRow, [job_id]), f"job {job_id}")


def lock_all(session: Session, job_ids: Collection[str]) -> list[JobRow]:
    """Lock several jobs; deleted jobs are left out."""
    return row_locks.lock(session, JobRow, job_ids)


def keep(session: Session, job_ids: Collection[str]) -> list[str]:
    """Protect jobs from deletion until the transaction ends. Returns the ids of the existing ones."""
    return [row.id for row in row_locks.keep(session, JobRow, job_ids)]


def start(session: Session, job_id: str) -> bool:
    """Move a queued job to in_progress. Returns False if it was not queued."""
    row = lock(session, job_id)
    if row.status != JobStatus.QUEUED:
        return False
    row.status, row.started_at = JobStatus.IN_PROGRESS, now(session)
    session.flush()
    events.append(session, job_id, "job.started", counts_of(row))
    return True


def set_total(session: Session, job_id: str, total: int) -> None:
    """Record the number of samples of a dataset that a worker has read."""
    row = lock(session, job_id)
    row.total = row.pending = total
    session.flush()


def set_hooks(session: Session, job_id: str, hooks: Sequence[str]) -> None:
    """Record the canonical hook names of a job that was submitted before its model was loaded."""
    session.execute(sa.update(JobRow).where(JobRow.id == job_id).values(hooks=list(hooks)))


def count_finished(session: Session, job_id: str, *, completed: int, failed: int) -> None:
    """Add to the job's counters, and log them once a second at most."""
    row, moment = lock(session, job_id), now(session)
    row.completed += completed
    row.failed += failed
    if moment - row.logged_at >= EVENT_SECONDS:
        row.logged_at = moment
        events.append(session, job_id, "job.progress", counts_of(row))


def cancel(session: Session, job_id: str) -> JobRow:
    """Cancel a job. Finished samples are kept; workers drop the others. A cancelled job stays as it is.

    Raises:
        NotFound: no such job.
        Conflict: it has already completed or failed.
    """
    row = lock(session, job_id)
    status = JobStatus(row.status)
    if status in (JobStatus.COMPLETED, JobStatus.FAILED):
        raise Conflict(f"job {job_id} is {status} already")
    if status in ACTIVE:
        row.status, row.finished_at, row.pending = JobStatus.CANCELLED, now(session), 0
        _cancel_rest(session, job_id)
        events.append(session, job_id, "job.cancelled", counts_of(row))
        session.flush()
    return row


def fail(session: Session, job_id: str, error: ActographError) -> None:
    """Fail an active job with a reason. Its open samples are cancelled."""
    held = lock_all(session, [job_id])
    if held and held[0].status in ACTIVE:
        row = held[0]
        row.status, row.finished_at, row.error = JobStatus.FAILED, now(session), error.as_record()
        row.pending = 0
        _cancel_rest(session, job_id)
        events.append(session, job_id, "job.failed", counts_of(row) | {"error": row.error})
        session.flush()


def end_if_done(session: Session, job_id: str) -> JobStatus:
    """End a job that has nothing left to run. Called whenever samples have ended.

    A job fails if every sample failed, with the reason of the first one.
    """
    row = lock(session, job_id)
    status = JobStatus(row.status)
    if status.is_terminal() or row.total is None:
        return status
    if not has_open_samples(session, job_id):
        row.finished_at, row.pending = now(session), 0
        if row.completed == 0 and row.failed > 0:
            row.status = JobStatus.FAILED
            row.error = _first_error(session, job_id)
            events.append(session, job_id, "job.failed", counts_of(row) | {"error": row.error})
        else:
            row.status = JobStatus.COMPLETED
            events.append(session, job_id, "job.completed", counts_of(row))
    session.flush()
    return JobStatus(row.status)


def status_of(session: Session, job_id: str) -> JobStatus | None:
    """The job's status; None if it was deleted."""
    value = session.execute(sa.select(JobRow.status).where(JobRow.id == job_id)).scalar_one_or_none()
    return JobStatus(value) if value is not None else None


def active(session: Session, job_ids: Collection[str]) -> set[str]:
    """The given jobs that have neither ended nor been deleted."""
    chosen = (JobRow.id.in_(job_ids), JobRow.status.in_(ACTIVE))
    return set(session.scalars(sa.select(JobRow.id).where(*chosen)))


def has_open_samples(session: Session, job_id: str) -> bool:
    """True if a sample of the job has not ended."""
    statement = sa.select(SampleRow.id).where(SampleRow.job_id == job_id, SampleRow.status.in_(OPEN)).limit(1)
    return session.execute(statement).first() is not None


def counts_of(row: JobRow) -> dict[str, Any]:
    """Counts of samples for the job's events."""
    return {"total": row.total, "completed": row.completed, "failed": row.failed}


def deadline(seconds: float | None, moment: float) -> float | None:
    """The deadline of a job that is queued at `moment`, if its spec has `deadline_seconds`."""
    return None if seconds is None else moment + seconds


@of_everyone
def refers_to_file(session: Session, file_id: str) -> str | None:
    """An active job that reads this uploaded file, if any."""
    if session.get(FileRow, file_id) is None:
        return None
    for row in session.scalars(sa.select(JobRow).where(JobRow.status.in_(ACTIVE))):
        for field in ("dataset", "fewshot_dataset"):
            if (row.spec.get(field) or {}).get("file_id") == file_id:
                return row.id
    return None


def lock_to_delete(session: Session, job_id: str) -> JobRow:
    """The job, locked for deletion: no new row can refer to it. Raises NotFound."""
    return row_locks.one(row_locks.lock(session, JobRow, [job_id], to_delete=True), f"job {job_id}")


def _first_error(session: Session, job_id: str) -> dict[str, Any]:
    error = session.execute(
        sa.select(SampleRow.error)
        .where(SampleRow.job_id == job_id, SampleRow.status == SampleStatus.FAILED)
        .order_by(SampleRow.position)
        .limit(1)
    ).scalar_one()
    reason = error or {"type": "internal_error", "message": "no reason was recorded"}
    return {"type": reason["type"], "message": f"every sample failed; the first: {reason['message']}"}


def _cancel_rest(session: Session, job_id: str) -> None:
    """Cancel open samples. Their leases become invalid."""
    session.execute(
        sa.update(SampleRow)
        .where(SampleRow.job_id == job_id, SampleRow.status.in_(OPEN))
        .values(
            status=SampleStatus.CANCELLED,
            lease_token=SampleRow.lease_token + 1,
            worker_id=None,
            started_at=None,
        )
    )
