"""The queue as readers see it: jobs with their place, rate and time left, and counts for monitoring."""

from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract import base, resources
from actograph.contract.analyses import ANALYSIS
from actograph.contract.operations import WorkerStatus
from actograph.contract.resources import JobStatus, SampleStatus
from storage.accounts.quotas import Quotas
from storage.index import events, rollout, tallies
from storage.index.database import now
from storage.index.visible import of_everyone
from storage.jobs import jobs
from storage.queue import claim, pause, workers
from storage.sessions import sessions
from storage.sessions.filter import SessionFilter
from storage.tables.models import IS_LEASED, FileRow, JobRow, SampleRow, WorkerRow

#: period of the shown rate
RATE_SECONDS = 60.0


def job(
    session: Session,
    row: JobRow,
    quotas: Quotas | None = None,
    *,
    broker_trouble: str | None = None,
    served: Mapping[str, str | None] | None = None,
    positions: Mapping[str, int] | None = None,
    progress: Mapping[str, resources.Progress] | None = None,
) -> resources.Job:
    """The resource of a job.

    Args:
        quotas: if given, the resource says whether a quota pauses the job.
        broker_trouble: why workers are not woken.
        served: read once by callers that show many jobs, see `workers.served_models`.
        positions: read once by them too, see `claim.positions`.
        progress: and this, see `tallies.progress`.
    """
    paused = waiting = None
    if row.status in jobs.ACTIVE:
        paused = quotas and (quotas.pause() or quotas.owner_pause(row.owner))
        served = workers.served_models(session) if served is None else served
        waiting = workers.why_unserved(row.model, served)
        if waiting is None and broker_trouble and row.status == JobStatus.QUEUED:
            waiting = f"{broker_trouble}; until then workers look for jobs every few seconds"
    done = (tallies.progress(session, row) if progress is None else progress)[row.id]
    per_second, eta_seconds = _rate(session, row), None
    if per_second and row.total is not None and not (paused or waiting or pause.holds(session)):
        eta_seconds = (row.total - done.completed - done.failed) / per_second
    pinned = jobs.pin_of(row)
    return resources.Job(
        id=row.id,
        kind=row.kind,
        status=JobStatus(row.status),
        model=row.model,
        created_at=int(row.created_at),
        started_at=_seconds(row.started_at),
        finished_at=_seconds(row.finished_at),
        progress=done,
        error=base.ErrorRecord.model_validate(row.error) if row.error else None,
        priority=row.priority,
        owner=row.owner or None,
        deadline_at=_seconds(row.deadline_at),
        identity_sha256=row.identity_sha256,
        model_identity=pinned.identity if pinned else None,
        savepoints=pinned.savepoints if pinned else {},
        engine=pinned.engine if pinned else None,
        engine_reason=pinned.engine_reason if pinned else None,
        tags=row.spec.get("tags", []),
        metadata=row.spec.get("metadata", {}),
        spec=row.spec,
        results_url=f"/v1/jobs/{row.id}/results",
        queue_position=(claim.positions(session, row) if positions is None else positions).get(row.id),
        waiting_reason=waiting,
        samples_per_second=per_second,
        eta_seconds=eta_seconds,
        paused_reason=paused,
    )


def _rate(session: Session, row: JobRow) -> float | None:
    """Samples per second of a running job over the last minute, turns of other jobs included."""
    if row.status != JobStatus.IN_PROGRESS or row.started_at is None:
        return None
    progress = [
        (event.created_at, event.data["completed"] + event.data["failed"])
        for event in events.last_progress(session, row.id, count=64)
        if event.created_at >= row.started_at
    ]
    if len(progress) < 2:
        return None
    last, done = progress[-1]
    # the last two, however old the first of them is
    recent = [one for one in progress if one[0] >= last - RATE_SECONDS]
    since, before = min(recent[0], progress[-2])
    return (done - before) / (last - since) if last > since else None


def _seconds(value: float | None) -> int | None:
    return int(value) if value is not None else None


def next_jobs(session: Session, limit: int) -> Sequence[str]:
    """The next queued jobs that the session's owner may see, in the order of service."""
    statement = sa.select(JobRow.id).where(JobRow.status == JobStatus.QUEUED)
    return session.scalars(statement.order_by(*claim.ORDER).limit(limit)).all()


@of_everyone
def job_counts(session: Session, statuses: Collection[JobStatus] = jobs.ACTIVE) -> dict[str, int]:
    """Number of jobs in each of these statuses."""
    statement = sa.select(JobRow.status, sa.func.count()).where(JobRow.status.in_(statuses))
    found = {row[0]: row[1] for row in session.execute(statement.group_by(JobRow.status))}
    return {str(status): found.get(status, 0) for status in statuses}


@of_everyone
def open_samples(session: Session) -> dict[str, int]:
    """Number of pending and leased samples of active jobs.

    The counts in the jobs' rows give the pending ones, so a queue of millions is not read.
    """
    active = JobRow.status.in_(jobs.ACTIVE)
    unended = sa.select(sa.func.sum(JobRow.total - tallies.ended_samples())).where(active)
    leased = session.execute(
        sa.select(sa.func.count())
        .select_from(SampleRow)
        .join(JobRow, JobRow.id == SampleRow.job_id)
        .where(active, IS_LEASED, SampleRow.worker_id.is_not(None))
    ).scalar_one()
    pending = max(0, int(session.scalar(unended) or 0) - leased)
    return {str(SampleStatus.PENDING): pending, str(SampleStatus.LEASED): leased}


def gauges(session: Session, known: Sequence[WorkerRow]) -> dict[str, float]:
    """Numbers of queue, store and `known` workers for monitoring, by name. Indexes count them."""
    queued = sa.select(sa.func.min(JobRow.created_at)).where(JobRow.status == JobStatus.QUEUED)
    oldest = session.scalar(queued)
    stored = sessions.totals(session, SessionFilter())
    files = session.execute(sa.select(sa.func.count(), sa.func.sum(FileRow.bytes))).one()
    return {
        "oldest_queued_job_age_seconds": max(0.0, now(session) - oldest) if oldest is not None else 0.0,
        "queue_paused": pause.holds(session),
        "sessions_to_store": sessions_to_store(known),
        "workers_waiting_for_store": len(waiting_workers(known)),
        "stored_sessions": stored.sessions,
        "stored_session_rows": stored.rows,
        "stored_session_bytes": stored.bytes,
        "stored_files": files[0],
        "stored_file_bytes": int(files[1] or 0),
    }


def sessions_to_store(known: Sequence[WorkerRow]) -> int:
    """Sessions of ended samples that live workers have still to store, as of their heartbeats."""
    return sum((row.memory or {}).get("sessions_to_store", 0) for row in known if row.status in workers.LIVE)


def waiting_workers(known: Sequence[WorkerRow]) -> Sequence[WorkerRow]:
    """Live workers that start no samples, because the store is slow or unavailable."""
    live = [row for row in known if row.status in workers.LIVE]
    return [row for row in live if row.error or (row.memory or {}).get("waits_for_store")]


def waiting_reason(session: Session, known: Sequence[WorkerRow]) -> str | None:
    """Why live workers start no samples; None if all do."""
    if migration := rollout.waiting_reason(session):
        return migration
    waiting = waiting_workers(known)
    if not waiting:
        return None
    told = next((str(row.error["message"]) for row in waiting if row.error), None)
    count = sessions_to_store(known)
    return told or f"the store is slow: {count} sessions wait for it, {len(waiting)} workers start no samples"


def worker_counts(known: Sequence[WorkerRow]) -> dict[str, int]:
    """Number of workers with a model in each status."""
    statuses = [row.status for row in known if row.model != ANALYSIS]
    return {str(status): statuses.count(status) for status in WorkerStatus}
