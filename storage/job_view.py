"""A job as the API shows it."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from actograph.contract import resources
from actograph.contract.resources import JobStatus
from storage import events, jobs, routing
from storage.job_queue import queue_position
from storage.jobs import ACTIVE
from storage.models import JobRow
from storage.quotas import Quotas


def rate(session: Session, row: JobRow) -> float | None:
    """Samples per second over the last units of a running job."""
    if row.status != JobStatus.IN_PROGRESS:
        return None
    progress = events.last_progress(session, row.id)
    if not progress:
        return None
    first, last = progress[0], progress[-1]
    done = _done(last.data) - _done(first.data)
    span = last.created_at - first.created_at
    if done <= 0 or span <= 0:
        done, span = _done(last.data), last.created_at - (row.started_at or row.created_at)
    return done / span if span > 0 else None


def resource(
    session: Session,
    row: JobRow,
    positions: Mapping[str, int] | None = None,
    quotas: Quotas | None = None,
) -> resources.Job:
    """The job as the API shows it; with `quotas` it says whether one of them holds it back."""
    place = positions.get(row.id) if positions is not None else queue_position(session, row)
    per_second = rate(session, row)
    left = (row.total or 0) - row.completed - row.failed
    return resources.Job(
        id=row.id,
        kind=row.kind,
        status=JobStatus(row.status),
        model=row.model,
        created_at=int(row.created_at),
        started_at=_seconds(row.started_at),
        finished_at=_seconds(row.finished_at),
        progress=progress(row),
        queue_position=place,
        waiting_reason=_waiting_reason(session, row),
        samples_per_second=per_second,
        eta_seconds=left / per_second if per_second else None,
        error=resources.ErrorRecord.model_validate(row.error) if row.error else None,
        priority=row.priority,
        owner=row.owner,
        paused_reason=_paused(row, quotas),
        deadline_at=_seconds(row.deadline_at),
        tags=row.spec.get("tags", []),
        metadata=row.spec.get("metadata", {}),
        spec=row.spec,
        results_url=f"/v1/jobs/{row.id}/results",
    )


def _paused(row: JobRow, quotas: Quotas | None) -> str | None:
    if quotas is None or row.status not in ACTIVE:
        return None
    return quotas.pause() or quotas.owner_pause(row.owner)


def progress(row: JobRow) -> resources.Progress:
    return resources.Progress(total=row.total or 0, completed=row.completed, failed=row.failed)


def _waiting_reason(session: Session, row: JobRow) -> str | None:
    return routing.why_unserved(session, row.model) if row.status in jobs.ACTIVE else None


def _done(data: Mapping[str, Any]) -> int:
    return int(data["completed"]) + int(data["failed"])


def _seconds(value: float | None) -> int | None:
    return int(value) if value is not None else None
