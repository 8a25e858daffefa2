"""The log of a job as Server-Sent Events.

https://html.spec.whatwg.org/multipage/server-sent-events.html. A stream holds no database
connection between two reads of the log, so many streams can be open.
"""

import logging
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import anyio
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from actograph.contract.resources import Event
from api.dependencies import Services
from storage.index import events
from storage.jobs import jobs

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
PING_SECONDS = 15.0
BATCH = 500
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
#: pause of a browser before it reconnects
RETRY_MILLISECONDS = 2000
LAST_EVENTS = frozenset({"job.completed", "job.failed", "job.cancelled"})


_FIELDS = {name: {"type": "string"} for name in ("id", "event", "data")}
#: the content of an event stream in the OpenAPI document
DOCUMENTED: dict[str, Any] = {
    "text/event-stream": {"itemSchema": {"type": "object", "properties": _FIELDS, "required": ["data"]}}
}


class NewEvents(NamedTuple):
    """Entries of the log after some event."""

    events: list[Event]
    #: True if no entry follows; the end before a retry is not the last entry
    is_over: bool


def look(services: Services, job_id: str, after: int) -> NewEvents:
    """Read the next entries after event `after`."""
    with services.database.read() as session:
        # read the status first: a terminal status means that the last entry exists; a deleted job has none
        status = jobs.status_of(session, job_id)
        found = events.after(session, job_id, after, BATCH)
    is_ended = status is None or status.is_terminal()
    return NewEvents(found, is_ended and (not found or found[-1].event in LAST_EVENTS))


async def follow(services: Services, job_id: str, after: int, found: NewEvents) -> AsyncIterator[str]:
    """Follow the log after event `after`; `found` holds the entries read so far.

    The stream ends after the job's last event, if the job is deleted, if the service stops, and if the
    database fails. The client resumes with the id of its last event.
    """
    yield f"retry: {RETRY_MILLISECONDS}\n\n"
    sent_at = time.monotonic()
    try:
        while True:
            for event in found.events:
                yield encode(event)
                after, sent_at = event.id, time.monotonic()
            if found.is_over or services.stopping.is_set():
                return
            if len(found.events) < BATCH:
                await anyio.sleep(POLL_SECONDS)
            if time.monotonic() - sent_at >= PING_SECONDS:
                yield ": ping\n\n"
                sent_at = time.monotonic()
            found = await run_in_threadpool(look, services, job_id, after)
    except SQLAlchemyError as error:
        log.warning("the event stream of job %s ends, the database failed: %s", job_id, error)


def encode(event: Event) -> str:
    """Encode one message. JSON has no line break, so `data` is one line."""
    return f"id: {event.id}\nevent: {event.event}\ndata: {event.model_dump_json()}\n\n"
