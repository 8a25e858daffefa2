"""Wakes jobs that have work and no message: after lost messages, and when the queue goes on."""

from collections import Counter

from actograph.contract.errors import ServiceUnavailable
from api.dependencies import Services
from storage import job_queue, model_loads, workers


def wake_jobs(services: Services) -> list[str]:
    """Wake jobs that nobody runs, and bring idle workers to those that one worker runs alone.

    Returns the jobs that were woken.

    Raises:
        ServiceUnavailable: the broker does not answer.
    """
    with services.database.read() as session:
        busy = set(workers.busy_job_ids(session))
        idle = Counter(workers.idle_models(session))
        candidates = job_queue.claimable(session)
    wanted = []
    for job in candidates:
        if job.id not in busy:
            wanted.append(job)
        elif job.kind != model_loads.KIND and idle[job.model] > 0:
            idle[job.model] -= 1
            wanted.append(job)
    if not wanted:
        return []
    waiting = services.broker.waiting_job_ids()
    woken: list[str] = []
    for job in wanted:
        if job.id in waiting:
            continue
        if not services.broker.wake(job.id, job.priority):
            raise ServiceUnavailable("the broker does not answer")
        woken.append(job.id)
    return woken
