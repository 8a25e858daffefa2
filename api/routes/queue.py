"""/v1/queue and /v1/workers: show the queue and its workers, pause and resume the queue."""

import logging
from collections import Counter
from contextlib import suppress

from fastapi import APIRouter

from actograph.contract.errors import ServiceUnavailable
from actograph.contract.resources import ListPage, Queue, Worker, WorkerStatus
from actograph.contract.specs import PauseRequest
from api.auth import ADMIN, READ, Caller
from api.bodies import JsonRoute
from api.dependencies import Services, ServicesDep
from storage.index import pages
from storage.queue import pause, waiting, workers

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1", tags=["queue"], dependencies=[READ], route_class=JsonRoute)


SHOWN_JOBS = 20


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
    """Resume the queue; idle workers look within seconds. A pause for lack of disk space stays."""
    with services.database.write() as session:
        was_paused = pause.end(session)
    if was_paused:
        log.warning("the queue is resumed by %s", by)
    return _queue(services)


@router.get("/workers", summary="Workers, the newest first", dependencies=[ADMIN])
def list_workers(services: ServicesDep) -> ListPage[Worker]:
    """Live workers, and workers that ended within a day."""
    with services.database.read() as session:
        return pages.page(workers.find(session), False, workers.resource)


def _queue(services: Services) -> Queue:
    messages = None
    with suppress(ServiceUnavailable):
        messages = services.broker.messages()
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
