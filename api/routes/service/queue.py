"""/v1/queue: what waits and what runs, and holding it."""

import logging
from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Depends

from actograph.contract.errors import ServiceUnavailable
from actograph.contract.resources import Queue, WorkerStatus
from actograph.contract.specs import PauseRequest
from api.dependencies import Services, ServicesDep
from api.problems.errors import documented
from api.problems.validation import parse_body
from api.requests.request_body import body_of, optional_json_body
from api.security.auth import caller
from api.submission import pauses
from storage.accounts import quotas
from storage.queue import job_queue, pause, workers

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/queue", tags=["queue"])

SHOWN_JOBS = 20
#: jobs that get a message when the queue is resumed; the others' turn comes by the index
MOST_WOKEN = 500


@router.get("", operation_id="get_queue", summary="What waits and what runs", response_model=Queue)
def get_queue(services: ServicesDep) -> Queue:
    return _queue(services)


@router.post(
    "/pause",
    operation_id="pause_queue",
    summary="Begin nothing new",
    response_model=Queue,
    responses=documented(413, 415, 422),
    openapi_extra=body_of("PauseRequest", required=False),
)
def pause_queue(
    services: ServicesDep,
    by: Annotated[str, Depends(caller)],
    body: Annotated[bytes | None, Depends(optional_json_body)],
) -> Queue:
    """Workers finish the unit in hand and claim no other; jobs are still accepted.

    It lasts, also over restarts, until `POST /v1/queue/resume`. Pausing twice changes the reason alone.
    """
    reason = parse_body(PauseRequest, body).reason if body is not None else None
    with services.database.write() as session:
        pause.start(session, by=by, reason=reason)
    log.warning("the queue is paused by %s: %s", by, reason or "no reason given")
    return _queue(services)


@router.post(
    "/resume", operation_id="resume_queue", summary="End the pause that was asked for", response_model=Queue
)
def resume_queue(services: ServicesDep, by: Annotated[str, Depends(caller)]) -> Queue:
    """Wakes the waiting jobs. A pause for want of disk space is not ended by this."""
    with services.database.write() as session:
        was_paused = pause.end(session)
    if was_paused:
        log.warning("the queue is resumed by %s", by)
    answer = _queue(services)
    if not answer.paused:
        _wake_waiting(services)
    return answer


def _wake_waiting(services: Services) -> None:
    """Wake workers at once; without a broker they find the jobs by asking the index."""
    with services.database.read() as session:
        held = quotas.read(session, services.settings).paused_owners()
        waiting = job_queue.claimable(session, held)[:MOST_WOKEN]
    for job in waiting:
        if not services.broker.wake(job.id, job.priority):
            return


def _queue(services: Services) -> Queue:
    messages = _messages(services)
    with services.database.read() as session:
        held = pauses.find(services, session)
        statuses = Counter(row.status for row in workers.find(session))
        return Queue(
            paused=bool(held),
            paused_reason=pauses.in_words(held),
            pauses=held,
            jobs={str(status): count for status, count in job_queue.counts(session).items()},
            samples={str(status): count for status, count in job_queue.open_samples(session).items()},
            next=job_queue.next_of_own(session)[:SHOWN_JOBS],
            messages=messages,
            workers={str(status): statuses[status] for status in WorkerStatus},
        )


def _messages(services: Services) -> int | None:
    try:
        return services.broker.messages()
    except ServiceUnavailable:
        return None
