"""Wakes jobs that have work and no message: after lost messages, and when the queue goes on."""

import time
from collections.abc import Sequence

from actograph.contract.errors import ServiceUnavailable
from api.dependencies import Services
from storage import job_queue, model_loads, quotas, routing, workers
from storage.job_queue import WaitingJob

#: jobs woken in one round; the others have their turn in the next
MOST_AT_ONCE = 2000
SECOND_LOOK_SECONDS = 0.2


def wake_jobs(services: Services) -> list[str]:
    """Wake jobs that nobody runs, and bring an idle worker to those that others run; it calls further ones.

    A message in the queue of a model that nobody holds any more counts as lost. Returns the jobs that
    were woken.

    Raises:
        ServiceUnavailable: the broker does not answer.
    """
    with services.database.read() as session:
        busy = set(workers.busy_job_ids(session))
        fleet = routing.fleet(session)
        held = quotas.read(session, services.settings).paused_owners()
        candidates = job_queue.claimable(session, held)
    idle = fleet.idle.copy()
    wanted = []
    for job in candidates:
        if job.id not in busy:
            wanted.append(job)
        elif job.kind != model_loads.KIND and idle[job.model] > 0:
            idle[job.model] -= 1
            wanted.append(job)
    lost = _without_message(services, fleet, wanted)
    if lost:
        # a job is there a moment before its message is
        time.sleep(SECOND_LOOK_SECONDS)
        lost = _without_message(services, fleet, lost)
    woken: list[str] = []
    for job in lost[:MOST_AT_ONCE]:
        if not services.broker.wake(job.id, job.priority):
            raise ServiceUnavailable("the broker does not answer")
        woken.append(job.id)
    return woken


def _without_message(
    services: Services, fleet: routing.Fleet, wanted: Sequence[WaitingJob]
) -> list[WaitingJob]:
    """Those that no worker will hear of. Raises ServiceUnavailable."""
    if not wanted:
        return []
    waiting = services.broker.waiting()
    return [
        job
        for job in wanted
        if not any(job.id in waiting.get(queue, ()) for queue in fleet.queues_read(job.model))
    ]
