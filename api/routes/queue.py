"""/v1/queue: what waits and what runs."""

from collections import Counter

from fastapi import APIRouter

from actograph.contract.errors import ServiceUnavailable
from actograph.contract.resources import Queue, WorkerStatus
from api.dependencies import Services, ServicesDep
from storage import job_queue, workers
from storage.queue_state import disk_pause

router = APIRouter(prefix="/v1/queue", tags=["queue"])

SHOWN_JOBS = 20


@router.get("", operation_id="get_queue", summary="What waits and what runs", response_model=Queue)
def get_queue(services: ServicesDep) -> Queue:
    reason = disk_pause(services.store, services.settings.disk_floor_bytes)
    with services.database.read() as session:
        statuses = Counter(row.status for row in workers.find(session))
        return Queue(
            paused=reason is not None,
            paused_reason=reason,
            jobs={str(status): count for status, count in job_queue.counts(session).items()},
            samples={str(status): count for status, count in job_queue.open_samples(session).items()},
            next=list(job_queue.queue_positions(session))[:SHOWN_JOBS],
            messages=_messages(services),
            workers={str(status): statuses[status] for status in WorkerStatus},
        )


def _messages(services: Services) -> int | None:
    try:
        return len(services.broker.waiting_job_ids())
    except ServiceUnavailable:
        return None
