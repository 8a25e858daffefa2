"""A job's log as Server-Sent Events.

https://html.spec.whatwg.org/multipage/server-sent-events.html. A stream holds no database
connection between two looks at the log, so that many may be open at once.
"""

import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anyio
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from actograph.contract.resources import Event, JobStatus
from api.dependencies import Services
from storage.index import events
from storage.jobs import jobs

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
PING_SECONDS = 15.0
BATCH = 500
#: of an answer in the OpenAPI document: one message of the stream
DOCUMENTED: dict[str, Any] = {
    "text/event-stream": {
        "itemSchema": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
            "required": ["data"],
        }
    }
}
#: a browser that lost the stream asks again after so long
RETRY_MILLISECONDS = 2000
LAST_EVENTS = frozenset({"job.completed", "job.failed", "job.cancelled"})


@dataclass(frozen=True, kw_only=True)
class Look:
    """What the log held after some event."""

    events: list[Event]
    #: None: the job was deleted
    status: JobStatus | None

    @property
    def is_over(self) -> bool:
        """Nothing follows any more."""
        return not self.events and (self.status is None or self.status.is_terminal())

    @property
    def has_last(self) -> bool:
        """Nothing follows after these. The end before a retry is no last event."""
        is_ended = self.status is None or self.status.is_terminal()
        return is_ended and (not self.events or self.events[-1].event in LAST_EVENTS)


def look(services: Services, job_id: str, after: int) -> Look:
    """The next entries after event `after`."""
    with services.database.read() as session:
        # the status first: where it is an end, the last entry is there to be read
        status = jobs.status_of(session, job_id)
        return Look(events=events.after(session, job_id, after, BATCH), status=status)


async def follow(services: Services, job_id: str, after: int, first: Look) -> AsyncIterator[str]:
    """The log after event `after`, of which `first` is the beginning, as it is written.

    Ends after the job's last event, when the job is deleted, when the service stops, and when
    the database fails; the client resumes with the id of the last event that it got.
    """
    yield f"retry: {RETRY_MILLISECONDS}\n\n"
    sent_at = time.monotonic()
    found = first
    while True:
        for event in found.events:
            yield encode(event)
            after, sent_at = event.id, time.monotonic()
        if found.has_last or services.stopping.is_set():
            return
        if len(found.events) < BATCH:
            await anyio.sleep(POLL_SECONDS)
        if time.monotonic() - sent_at >= PING_SECONDS:
            yield ": ping\n\n"
            sent_at = time.monotonic()
        try:
            found = await run_in_threadpool(look, services, job_id, after)
        except SQLAlchemyError as error:
            log.warning("the event stream of job %s ends, the database failed: %s", job_id, error)
            return


def encode(event: Event) -> str:
    """One message; JSON holds no line break, so `data` is one line."""
    return f"id: {event.id}\nevent: {event.event}\ndata: {event.model_dump_json()}\n\n"
