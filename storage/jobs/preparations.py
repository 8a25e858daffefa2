"""Failed attempts to make a job ready, counted in its log, since the worker's process may change between."""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import ActographError
from storage.index import events
from storage.jobs import jobs
from storage.tables.models import EventRow

EVENT = "job.preparation_failed"
#: a job that cannot be made ready so often has failed
MOST = 3


def note_failure(session: Session, job_id: str, error: ActographError) -> None:
    """Log a failed attempt; the job fails with `error` after `MOST` since it was submitted or retried."""
    held = jobs.lock_all(session, [job_id])
    if not held or held[0].status not in jobs.ACTIVE:
        return
    attempt = 1 + _failed_attempts(session, job_id)
    events.append(session, job_id, EVENT, {"attempt": attempt, "of": MOST, "error": error.as_record()})
    if attempt >= MOST:
        jobs.fail(session, job_id, error)


def _failed_attempts(session: Session, job_id: str) -> int:
    retried = (
        sa.select(sa.func.coalesce(sa.func.max(EventRow.id), 0))
        .where(EventRow.job_id == job_id, EventRow.event == "job.retried")
        .scalar_subquery()
    )
    counted = sa.select(sa.func.count()).where(
        EventRow.job_id == job_id, EventRow.event == EVENT, EventRow.id > retried
    )
    return int(session.execute(counted).scalar_one())
