"""Log in jobs that no worker can serve their model."""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from storage.index import events
from storage.index.database import Database, now
from storage.jobs import jobs
from storage.queue import job_queue, routing
from storage.tables.models import WorkerRow

WAITING = "job.waiting"
MOST_AT_ONCE = 500


def tell(database: Database, *, patience_seconds: float) -> list[str]:
    """Log `job.waiting` with the reason, once in each job; returns the ids of these jobs.

    A model must have been without a worker for `patience_seconds`: workers that restart are back sooner.
    """
    with database.read() as session:
        reasons = {
            model: reason
            for model in job_queue.active_models(session)
            if (reason := routing.fleet(session).why_unserved(model))
        }
        due = set(reasons) - _lately_served(session, patience_seconds) if reasons else set()
    told: list[str] = []
    for model in sorted(due):
        with database.write() as session:
            submitted_before = now(session) - patience_seconds
            mute = job_queue.active_without_event(
                session, model, WAITING, submitted_before=submitted_before, limit=MOST_AT_ONCE
            )
            for job_id in jobs.keep(session, mute):
                events.append(session, job_id, WAITING, {"reason": reasons[model]})
                told.append(job_id)
    return told


def _lately_served(session: Session, seconds: float) -> set[str]:
    """Models of workers that showed a sign of life so recently, whether or not they live still."""
    rows = session.execute(
        sa.select(WorkerRow.model, WorkerRow.served).where(WorkerRow.heartbeat_at > now(session) - seconds)
    )
    return {name for row in rows for name in (row.model, *(row.served or ())) if name}
