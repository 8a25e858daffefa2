"""Notes in the logs of jobs that no worker can serve."""

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
    """Log `job.waiting` with the reason, once in each job; returns the jobs' ids.

    A job is logged only if its model had no worker for `patience_seconds`: workers may be restarting.
    """
    with database.read() as session:
        fleet = routing.fleet(session)
        reasons = {
            model: reason
            for model in job_queue.active_models(session)
            if (reason := fleet.why_unserved(model))
        }
        unserved = set(reasons) - _lately_served(session, patience_seconds) if reasons else set()
    logged: list[str] = []
    for model in sorted(unserved):
        with database.write() as session:
            submitted_before = now(session) - patience_seconds
            unlogged = job_queue.active_without_event(
                session, model, WAITING, submitted_before=submitted_before, limit=MOST_AT_ONCE
            )
            for job_id in jobs.keep(session, unlogged):
                events.append(session, job_id, WAITING, {"reason": reasons[model]})
                logged.append(job_id)
    return logged


def _lately_served(session: Session, seconds: float) -> set[str]:
    """Models of workers with a heartbeat in the last `seconds`."""
    rows = session.execute(
        sa.select(WorkerRow.model, WorkerRow.served).where(WorkerRow.heartbeat_at > now(session) - seconds)
    )
    return {name for row in rows for name in (row.model, *(row.served or ())) if name}
