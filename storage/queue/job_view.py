"""The resource of a job with its live fields: place, rate, ETA, and reasons to wait."""

from collections.abc import Collection

from sqlalchemy.orm import Session

from actograph.contract import resources
from actograph.contract.resources import JobStatus
from storage.accounts.quotas import Quotas
from storage.index import events
from storage.jobs import jobs, view
from storage.jobs.jobs import ACTIVE
from storage.queue import claim, pause, routing
from storage.tables.models import JobRow

#: period of the shown rate
RATE_SECONDS = 60.0


def rate(session: Session, row: JobRow) -> float | None:
    """Samples per second of a running job over the last minute, turns of other jobs included."""
    if row.status != JobStatus.IN_PROGRESS or row.started_at is None:
        return None
    found = events.last_progress(session, row.id, count=64)
    progress = [
        (event.created_at, event.data["completed"] + event.data["failed"])
        for event in found
        if event.created_at >= row.started_at
    ]
    if len(progress) < 2:
        return None
    last, done = progress[-1]
    # the last two, however old the first of them is
    recent = [one for one in progress if one[0] >= last - RATE_SECONDS]
    since, before = min(recent[0], progress[-2])
    return (done - before) / (last - since) if last > since else None


def resource(
    session: Session,
    row: JobRow,
    quotas: Quotas | None = None,
    *,
    broker_trouble: str | None = None,
    served: Collection[str] | None = None,
) -> resources.Job:
    """The resource of a job.

    Args:
        served: read once by callers that show many jobs, see `routing.served_models`.
        quotas: if given, the resource says whether a quota pauses the job.
        broker_trouble: why workers are not woken.
    """
    paused = _paused(row, quotas)
    waiting_reason = _waiting_reason(session, row, broker_trouble, served)
    per_second = rate(session, row)
    eta_seconds = None
    if per_second and row.total is not None and not (paused or waiting_reason or pause.holds(session)):
        eta_seconds = (row.total - row.completed - row.failed) / per_second
    return view.of_row(
        row,
        queue_position=claim.position(session, row),
        waiting_reason=waiting_reason,
        samples_per_second=per_second,
        eta_seconds=eta_seconds,
        paused_reason=paused,
    )


def _paused(row: JobRow, quotas: Quotas | None) -> str | None:
    if quotas is None or row.status not in ACTIVE:
        return None
    return quotas.pause() or quotas.owner_pause(row.owner)


def _waiting_reason(
    session: Session, row: JobRow, broker_trouble: str | None, served: Collection[str] | None
) -> str | None:
    if row.status not in jobs.ACTIVE:
        return None
    if served is None:
        served = routing.served_models(session)
    unserved = routing.why_unserved(row.model, served)
    return unserved or (in_spite_of(broker_trouble) if row.status == JobStatus.QUEUED else None)


def in_spite_of(broker_trouble: str | None) -> str | None:
    """The waiting reason of a queued job while workers are not woken; None if they are."""
    return broker_trouble and f"{broker_trouble}; until then workers look for jobs every few seconds"
