"""Notes in the logs of jobs that no worker can serve."""

from storage.index import events
from storage.index.database import Database, now
from storage.jobs import jobs
from storage.queue import routing, waiting
from storage.tables.models import WorkerRow

WAITING = "job.waiting"
MOST_AT_ONCE = 500


def log_waiting(database: Database, *, patience_seconds: float) -> list[str]:
    """Log `job.waiting` with the reason, once in each job. Returns the ids of these jobs.

    A job is logged only if its model had no worker for `patience_seconds`: workers may be restarting.
    """
    with database.read() as session:
        served = routing.served_models(session)
        lately = WorkerRow.heartbeat_at > now(session) - patience_seconds
        unserved = waiting.active_models(session) - served - routing.served_models(session, lately)
    logged: list[str] = []
    for model in sorted(unserved):
        with database.write() as session:
            submitted_before = now(session) - patience_seconds
            unlogged = waiting.active_without_event(
                session, model, WAITING, submitted_before=submitted_before, limit=MOST_AT_ONCE
            )
            for row in jobs.lock_all(session, unlogged):
                events.append(session, row.id, WAITING, {"reason": routing.why_unserved(model, served)})
                logged.append(row.id)
    return logged
