"""Queries about jobs. Callers open and commit the transaction."""

import json
from collections.abc import Collection, Sequence
from typing import Any, TypedDict, TypeVar, Unpack, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.analyses import AnalysisSpec
from actograph.contract.chat_job import BatchJobSpec, ChatJobSpec
from actograph.contract.errors import ActographError, Conflict
from actograph.contract.job_specs import AnyJobSpec, ListedKind
from actograph.contract.models import EngineChoice, ModelStructure, PinnedModel
from actograph.contract.resources import JobStatus, SampleStatus
from storage.index import events, notices, pages, row_locks, tallies
from storage.index.database import now
from storage.index.ids import among, new_job_id
from storage.index.pages import PageOptions
from storage.jobs.request_keys import RequestKey
from storage.tables.models import JobRow, JobTagRow, SampleRow

S = TypeVar("S", bound="sa.Select[*tuple[Any, ...]]")
Spec = AnyJobSpec | ChatJobSpec | BatchJobSpec
#: kind of a job that loads a model, see `storage.queue.model_loads`; it has no samples
LOAD = "load"
ACTIVE = (JobStatus.QUEUED, JobStatus.IN_PROGRESS)
OPEN = (SampleStatus.PENDING, SampleStatus.SUSPECT, SampleStatus.LEASED)
_INSERT = sa.insert(cast(sa.Table, JobRow.__table__))
_INSERT_TAGS = sa.insert(cast(sa.Table, JobTagRow.__table__))


class JobFields(TypedDict, total=False):
    """Fields of a new job that are not in its spec."""

    #: canonical names of the captured hooks; None until the model's structure is known
    hooks: Sequence[str] | None
    #: number of samples; None until a worker has read the dataset
    total: int | None
    #: "" is nobody
    owner: str
    #: None until the model's identity is known
    pinned: PinnedModel | None
    #: see `storage.jobs.request_keys`
    request_key: RequestKey | None


class JobFilter(TypedDict, total=False):
    """Conditions that a job must meet; None means any value."""

    id_prefix: str | None
    status: JobStatus | None
    kind: ListedKind | None
    tag: str | None
    model: str | None
    #: a part of the id or of the spec's JSON
    text: str | None


def create(session: Session, spec: Spec | AnalysisSpec, **fields: Unpack[JobFields]) -> JobRow:
    """Insert a queued job. The session does not track the returned row."""
    moment, total = now(session), fields.get("total")
    hooks, pinned, request_key = fields.get("hooks"), fields.get("pinned"), fields.get("request_key")
    values: dict[str, Any] = {
        "id": new_job_id(),
        "kind": spec.kind,
        "status": JobStatus.QUEUED,
        "model": spec.model,
        # the samples of a capture job have its inputs; a copy would slow down every list
        "spec": spec.model_dump(mode="json", exclude={"inputs"}),
        "priority": spec.priority,
        "total": total,
        "pending": int(total != 0),
        "served_at": 0.0,
        "logged_at": 0.0,
        "completed": 0,
        "failed": 0,
        "created_at": moment,
        "deadline_at": deadline(spec.deadline_seconds, moment),
        "hooks": list(hooks) if hooks is not None else None,
        "owner": fields.get("owner", ""),
        "pinned": None if pinned is None else pinned.model_dump(mode="json"),
        "identity_sha256": None if pinned is None else pinned.identity.sha256,
        "failed_in_a_row": 0,
        "cached_tokens": 0,
        "idempotency_key": request_key and request_key.key,
        "idempotency_sha256": request_key and request_key.sha256,
    }
    connection = session.connection()
    connection.execute(_INSERT, values)
    row_locks.note_held(session, JobRow, values["id"])
    if spec.tags:
        tags = [{"job_id": values["id"], "tag": tag} for tag in dict.fromkeys(spec.tags)]
        connection.execute(_INSERT_TAGS, tags)
    events.append(session, values["id"], "job.queued", {"total": total}, moment=moment)
    notices.note(session, spec.model)
    return JobRow(**values)


def get(session: Session, job_id: str) -> JobRow:
    """Raises NotFound."""
    return row_locks.one([session.get(JobRow, job_id)], f"job {job_id}")


def find(
    session: Session,
    wanted: JobFilter | None = None,
    **page: Unpack[PageOptions],
) -> tuple[Sequence[JobRow], bool]:
    """One page of jobs, newest first by default."""
    statement = narrow(sa.select(JobRow), wanted or {})
    return pages.fetch(session, statement, JobRow.created_at, JobRow.id, **page)


def count(session: Session, wanted: JobFilter) -> dict[JobStatus, int]:
    """Number of matching jobs in each status."""
    statement = narrow(sa.select(JobRow.status, sa.func.count()).select_from(JobRow), wanted)
    found = {row[0]: row[1] for row in session.execute(statement.group_by(JobRow.status))}
    return {status: found.get(status, 0) for status in JobStatus}


def narrow(statement: S, wanted: JobFilter) -> S:
    """Restrict a statement to matching jobs."""
    if (id_prefix := wanted.get("id_prefix")) is not None:
        statement = statement.where(pages.id_begins(JobRow.id, id_prefix))
    for column, value in (
        (JobRow.status, wanted.get("status")),
        (JobRow.kind, wanted.get("kind")),
        (JobRow.model, wanted.get("model")),
    ):
        if value is not None:
            statement = statement.where(column == value)
    if (tag := wanted.get("tag")) is not None:
        statement = statement.join(JobTagRow, JobTagRow.job_id == JobRow.id).where(JobTagRow.tag == tag)
    if (text := wanted.get("text")) is not None:
        escaped = json.dumps(text)[1:-1]
        places = (JobRow.id, sa.cast(JobRow.spec, sa.Text))
        statement = statement.where(sa.or_(*(one.icontains(escaped, autoescape=True) for one in places)))
    return statement


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


def lock_free(session: Session, job_ids: Collection[str]) -> list[JobRow]:
    """Lock those of several jobs that no other transaction has locked."""
    return row_locks.lock_free(session, sa.select(JobRow).where(among(session, JobRow.id, job_ids)))


def lock_unread(session: Session, job_ids: Collection[str], *, to_delete: bool = False) -> Sequence[str]:
    """Lock many jobs without reading their rows. Returns the ids of the existing ones."""
    statement = sa.select(JobRow.id).where(among(session, JobRow.id, job_ids)).order_by(JobRow.id)
    found = session.scalars(statement.with_for_update(key_share=not to_delete)).all()
    row_locks.note_held(session, JobRow, *found)
    return found


def lock_active(session: Session, job_id: str) -> JobRow | None:
    """Lock a job; None if it has ended or was deleted."""
    held = lock_all(session, [job_id])
    return held[0] if held and held[0].status in ACTIVE else None


def start(session: Session, job_id: str) -> None:
    """Move a queued job to in_progress."""
    row = lock(session, job_id)
    if row.status == JobStatus.QUEUED:
        row.status, row.started_at = JobStatus.IN_PROGRESS, now(session)
        session.flush()
        events.append(session, job_id, "job.started", counts_of(row))


def set_total(session: Session, job_id: str, total: int) -> None:
    """Record the number of samples of a dataset that a worker has read."""
    row = lock(session, job_id)
    row.total, row.pending = total, int(total > 0)
    notices.note(session, row.model)
    session.flush()


def set_hooks(session: Session, job_id: str, hooks: Sequence[str]) -> None:
    """Record the canonical hook names of a job that was submitted before its model was loaded."""
    session.execute(sa.update(JobRow).where(JobRow.id == job_id).values(hooks=list(hooks)))


def pin_to(structure: ModelStructure | None, choice: EngineChoice = "auto") -> PinnedModel | None:
    """The pin of a job for a model with this structure; None if its identity is unknown.

    Raises:
        InvalidRequest: the model does not suit the job's choice of an engine.
    """
    if structure is None or structure.identity is None:
        return None
    engine, reason = structure.engine_for(choice)
    return PinnedModel(
        identity=structure.identity,
        savepoints=dict(structure.savepoints),
        engine=engine,
        engine_reason=reason,
    )


def pin_of(row: JobRow) -> PinnedModel | None:
    """The pin of a job; None if no worker has claimed it and its model's identity was unknown."""
    return None if row.pinned is None else PinnedModel.model_validate(row.pinned)


def pin(session: Session, job_id: str, pinned: PinnedModel) -> PinnedModel:
    """Pin a job to the identity of its model, unless another worker was faster. Returns the valid pin.

    Raises:
        NotFound: no such job.
    """
    row = lock(session, job_id)
    if row.pinned is not None:
        return PinnedModel.model_validate(row.pinned)
    row.pinned, row.identity_sha256 = pinned.model_dump(mode="json"), pinned.identity.sha256
    session.flush()
    data = {"identity_sha256": row.identity_sha256, **row.pinned}
    events.append(session, job_id, "job.model_identity", data)
    return pinned


def note_reload(session: Session, job_id: str, pinned: PinnedModel, differences: str) -> None:
    """Log in a job that a worker loaded the pinned model in place of the current one."""
    if lock_all(session, [job_id]):
        data = {"identity_sha256": pinned.identity.sha256, "differences": differences}
        events.append(session, job_id, "model.reloaded", data)


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
        _cancel_rest(session, job_id)
        _end(session, row, JobStatus.CANCELLED)
    return row


def fail(session: Session, job_id: str, error: ActographError) -> None:
    """Fail an active job with a reason. Its open samples are cancelled."""
    row = lock_active(session, job_id)
    if row is not None:
        _cancel_rest(session, job_id)
        _end(session, row, JobStatus.FAILED, error.as_record())


def end_if_done(session: Session, job_id: str) -> JobStatus:
    """End a job that has nothing left to run. Called whenever samples have ended.

    A job fails if every sample failed, with the reason of the first one.
    """
    row = lock(session, job_id)
    session.flush()
    if row.status in ACTIVE and row.is_expanded and not has_open_samples(session, job_id):
        tallies.fold(session, row)
        if row.completed == 0 and row.failed > 0:
            _end(session, row, JobStatus.FAILED, _first_error(session, job_id))
        else:
            _end(session, row, JobStatus.COMPLETED)
    return JobStatus(row.status)


def _end(session: Session, row: JobRow, status: JobStatus, error: dict[str, Any] | None = None) -> None:
    # after the samples have ended: no later commit adds to them
    tallies.fold(session, row)
    row.status, row.finished_at, row.error, row.pending = status, now(session), error, 0
    events.append(session, row.id, f"job.{status}", counts_of(row) | ({"error": error} if error else {}))
    if status != JobStatus.COMPLETED:
        notices.note(session, row.model)  # workers drop its samples
    session.flush()


def status_of(session: Session, job_id: str) -> JobStatus | None:
    """The job's status; None if it was deleted."""
    value = session.execute(sa.select(JobRow.status).where(JobRow.id == job_id)).scalar_one_or_none()
    return JobStatus(value) if value is not None else None


def active(session: Session, job_ids: Collection[str]) -> set[str]:
    """The given jobs that have neither ended nor been deleted."""
    chosen = (among(session, JobRow.id, job_ids), JobRow.status.in_(ACTIVE))
    return set(session.scalars(sa.select(JobRow.id).where(*chosen)))


def has_open_samples(session: Session, job_id: str) -> bool:
    """True if a sample of the job has not ended."""
    statement = sa.select(SampleRow.id).where(SampleRow.job_id == job_id, SampleRow.status.in_(OPEN)).limit(1)
    return session.execute(statement).first() is not None


def counts_of(row: JobRow) -> dict[str, Any]:
    """Counts for the job's events: samples, and tokens of prompts that were computed for several at once.

    The job is locked, and its tallies are folded if it has any.
    """
    cached = {"cached_tokens": row.cached_tokens} if row.cached_tokens else {}
    return {"total": row.total, "completed": row.completed, "failed": row.failed} | cached


def deadline(seconds: float | None, moment: float) -> float | None:
    """The deadline of a job that is queued at `moment`, if its spec has `deadline_seconds`."""
    return None if seconds is None else moment + seconds


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
    row_locks.lock_matching(session, SampleRow, SampleRow.job_id == job_id, SampleRow.status.in_(OPEN))
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
