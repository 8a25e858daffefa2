"""Says in a job's log that no worker can serve its model, so that it does not wait mutely."""

import time
from collections.abc import Callable

from api.dependencies import Services
from storage import events, job_queue, jobs, routing

WAITING = "job.waiting"
MOST_AT_ONCE = 500


class UnservedJobs:
    """Asked again and again by the reconciler.

    A model must have been without a worker for `patience_seconds` before anything is said: workers that are
    being restarted are back sooner.
    """

    def __init__(
        self, services: Services, *, patience_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._services = services
        self._patience_seconds = patience_seconds
        self._clock = clock
        #: model -> when it was first seen without a worker
        self._since: dict[str, float] = {}

    def tell(self) -> list[str]:
        """Log `job.waiting` with the reason, once in each job; returns those it was said of."""
        with self._services.database.read() as session:
            wanted = job_queue.active_models(session)
            fleet = routing.fleet(session)
        reasons = {model: reason for model in wanted if (reason := fleet.why_unserved(model))}
        self._since = {model: self._since.get(model, self._clock()) for model in reasons}
        due = [m for m, since in self._since.items() if self._clock() - since >= self._patience_seconds]
        told: list[str] = []
        for model in due:
            with self._services.database.write() as session:
                mute = job_queue.active_without_event(session, model, WAITING, limit=MOST_AT_ONCE)
                for job_id in jobs.keep(session, mute):
                    events.append(session, job_id, WAITING, {"reason": reasons[model]})
                    told.append(job_id)
        return told
