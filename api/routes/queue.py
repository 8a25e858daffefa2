"""/v1/queue: what waits and what runs."""

from collections import Counter

from fastapi import APIRouter

from actograph.contract.errors import ServiceUnavailable
from actograph.contract.resources import Queue, WorkerStatus
from api.dependencies import Services, ServicesDep
from storage import jobs, workers

router = APIRouter(prefix="/v1/queue", tags=["queue"])

SHOWN_JOBS = 20


@router.get("", operation_id="get_queue", summary="What waits and what runs", response_model=Queue)
def get_queue(services: ServicesDep) -> Queue:
    with services.database.read() as session:
        statuses = Counter(row.status for row in workers.find(session))
        return Queue(
            jobs={str(status): count for status, count in jobs.counts(session).items()},
            samples={str(status): count for status, count in jobs.open_samples(session).items()},
            next=list(jobs.queue_positions(session))[:SHOWN_JOBS],
            messages=_messages(services),
            workers={str(status): statuses[status] for status in WorkerStatus},
        )


def _messages(services: Services) -> int | None:
    try:
        return len(services.broker.waiting_job_ids())
    except ServiceUnavailable:
        return None
