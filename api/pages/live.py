"""Live pages: a stream that tells an open page when the state has changed.

A message holds a digest of the state. The page compares it with the digest that it shows, and reads itself
again if they differ. So a page catches up with one message after a lost connection or a restart.
"""

import hashlib
import time
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from fastapi import APIRouter, Query
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from api.auth import READ
from api.dependencies import Services, ServicesDep
from api.reading import sse
from storage.index import events
from storage.jobs import jobs
from storage.queue import pause, view, workers

router = APIRouter(include_in_schema=False, dependencies=[READ])

POLL_SECONDS = 1.0


@router.get("/live", response_class=StreamingResponse)
def follow_state(
    services: ServicesDep, job: Annotated[str | None, Query(max_length=64)] = None
) -> StreamingResponse:
    """Follow one job, or the queue with its workers."""
    stream = _messages(services, job)
    return StreamingResponse(stream, headers=sse.HEADERS, media_type="text/event-stream")


def digest(services: Services, job_id: str | None = None) -> str:
    """Digest of the visible state. Every change of a job leaves an event.

    An idle worker's numbers stay the same; a busy one's change with each heartbeat.
    """
    state: list[object] = []
    with services.database.read() as session:
        state += [(event.id, event.event) for event in events.latest(session, job_id, 1)]
        if job_id is not None:
            state.append(jobs.status_of(session, job_id))
        else:
            state += [(row.id, row.status, row.job_id, workers.work_of(row)) for row in workers.find(session)]
            state += [view.job_counts(session), pause.holds(session)]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


async def _messages(services: Services, job_id: str | None) -> AsyncIterator[str]:
    yield f"retry: {sse.RETRY_MILLISECONDS}\n\n"
    sent, sent_at = "", 0.0
    while not services.stopping.is_set():
        try:
            state = await run_in_threadpool(digest, services, job_id)
        except SQLAlchemyError:
            return  # the page connects again
        if state != sent or time.monotonic() - sent_at > sse.PING_SECONDS:
            sent, sent_at = state, time.monotonic()
            yield f"event: state\ndata: {state}\n\n"
        await anyio.sleep(POLL_SECONDS)
