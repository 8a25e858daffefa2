"""Live pages: a stream that tells an open page when its content has changed.

A message has a digest of the state and no data. The page compares it with the last one, and then reads itself
again. So a page that was disconnected catches up with one message, also after a restart of the service.
"""

import hashlib
import time
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from fastapi import Query
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from actograph.contract.errors import ActographError
from api.dependencies import Services, ServicesDep
from api.reading import sse
from api.routing import READ, Routes
from storage.index import events
from storage.jobs import jobs
from storage.queue import waiting, workers

router = Routes(include_in_schema=False)

POLL_SECONDS = 1.0


@router.add("GET", "/live", READ, "Changes of the state", response_class=StreamingResponse)
def follow_state(
    services: ServicesDep, job: Annotated[str | None, Query(max_length=64)] = None
) -> StreamingResponse:
    """Follow one job, or the queue with its workers."""
    stream = _messages(services, job)
    return StreamingResponse(stream, headers=sse.HEADERS, media_type="text/event-stream")


def digest(services: Services, job_id: str | None) -> str:
    """Digest of the visible state: counts, statuses and the newest entry of the log."""
    with services.database.read() as session:
        newest = [(event.id, event.event) for event in events.latest(session, job_id)]
        if job_id is not None:
            state = repr((jobs.status_of(session, job_id), newest))
        else:
            busy = [(row.id, row.status, row.job_id) for row in workers.find(session)]
            counts = sorted((str(status), count) for status, count in waiting.counts(session).items())
            state = repr((newest, counts, busy))
    return hashlib.sha256(state.encode()).hexdigest()[:16]


async def _messages(services: Services, job_id: str | None) -> AsyncIterator[str]:
    yield f"retry: {sse.RETRY_MILLISECONDS}\n\n"
    known, sent_at = "", time.monotonic()
    while not services.stopping.is_set():
        try:
            current = await run_in_threadpool(digest, services, job_id)
        except (ActographError, SQLAlchemyError):
            return  # the page connects again
        if current != known:
            known, sent_at = current, time.monotonic()
            yield f"event: state\ndata: {current}\n\n"
        elif time.monotonic() - sent_at > sse.PING_SECONDS:
            sent_at = time.monotonic()
            yield ": ping\n\n"
        await anyio.sleep(POLL_SECONDS)
