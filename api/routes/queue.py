"""/v1/queue and /v1/workers: show the queue and its workers, pause and resume the queue."""

import logging
from collections import Counter

from fastapi import APIRouter

from actograph.contract.base import ListPage
from actograph.contract.errors import ServiceUnavailable
from actograph.contract.operations import Queue, Worker, WorkerStatus
from actograph.contract.specs import PauseRequest
from api.auth import ADMIN, READ, Caller
from api.bodies import JsonRoute
from api.dependencies import Services, ServicesDep
from storage.accounts import quotas
from storage.index import pages
from storage.queue import pause, waiting, workers

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1", tags=["queue"], dependencies=[READ], route_class=JsonRoute)


SHOWN_JOBS = 20
#: jobs that get a message when the queue resumes; workers find the others in the index
MOST_WOKEN = 500


@router.get("/queue", summary="Waiting and running jobs")
def get_queue(services: ServicesDep) -> Queue:
    return _queue(services)


@router.post("/queue/pause", summary="Pause the queue", dependencies=[ADMIN])
def pause_queue(
    services: ServicesDep,
    by: Caller,
    request: PauseRequest | None = None,
) -> Queue:
    """Pause the queue. Workers finish their current batch and claim no other; jobs are still accepted.

    The pause lasts, also across restarts, until `POST /v1/queue/resume`. A second pause changes the reason.
    """
    reason = None if request is None else request.reason
    with services.database.write() as session:
        pause.start(session, by=by, reason=reason)
    log.warning("the queue is paused by %s: %s", by, reason or "no reason given")
    return _queue(services)


@router.post("/queue/resume", summary="Resume the queue", dependencies=[ADMIN])
def resume_queue(services: ServicesDep, by: Caller) -> Queue:
    """Resume the queue and wake waiting jobs. A pause for lack of disk space stays."""
    with services.database.write() as session:
        was_paused = pause.end(session)
    if was_paused:
        log.warning("the queue is resumed by %s", by)
    answer = _queue(services)
    if not answer.paused:
        _wake_waiting(services)
    return answer


@router.get("/workers", summary="Workers, the newest first", dependencies=[ADMIN])
def list_workers(services: ServicesDep) -> ListPage[Worker]:
    """Live workers, and workers that ended within a day."""
    with services.database.read() as session:
        return pages.page(workers.find(session), False, workers.resource)


def _wake_waiting(services: Services) -> None:
    """Wake workers at once. Without a broker they find the jobs in the index."""
    with services.database.read() as session:
        held = quotas.read(session, services.settings).paused_owners()
        claimable = waiting.claimable(session, held)[:MOST_WOKEN]
    for job in claimable:
        if not services.broker.wake(job.model):
            return


def _queue(services: Services) -> Queue:
    messages = _messages(services)
    with services.database.read() as session:
        held = pause.active(session, services.store, services.settings)
        statuses = Counter(row.status for row in workers.find(session))
        return Queue(
            paused=bool(held),
            paused_reason=pause.in_words(held),
            pauses=held,
            jobs={str(status): count for status, count in waiting.counts(session).items()},
            samples={str(status): count for status, count in waiting.open_samples(session).items()},
            next=list(waiting.queued(session, SHOWN_JOBS)),
            messages=messages,
            workers={str(status): statuses[status] for status in WorkerStatus},
        )


def _messages(services: Services) -> int | None:
    try:
        return services.broker.messages()
    except ServiceUnavailable:
        return None
