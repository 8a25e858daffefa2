"""A job's events, followed over broken connections."""

import time
from collections.abc import Iterator
from time import sleep

from actograph.client.answers import path_of, read_text
from actograph.client.errors import ApiError, ServiceUnreachable
from actograph.client.event_stream import LAST_EVENTS, Parser
from actograph.client.retries import RETRY_STATUS, backoff
from actograph.client.transport import Transport
from actograph.contract.resources import Event

#: the service sends a comment about every 15 s; longer silence means a dead connection
SILENCE_SECONDS = 60.0
#: time for a restart of the service
PATIENCE_SECONDS = 120.0
_NO_CONTENT = 204  # the job has ended and there are no later events


def is_short_outage(error: ApiError | ServiceUnreachable, answered_at: float) -> bool:
    """Whether to try again after an error; `answered_at` is the monotonic time of the last answer."""
    return error.status in RETRY_STATUS and time.monotonic() - answered_at <= PATIENCE_SECONDS


def follow(transport: Transport, job_id: str, after: int) -> Iterator[Event]:
    """Yield events after event `after` until the job has ended; see `Jobs.events`."""
    path = path_of("/v1/jobs", job_id, "events")
    failures, answered_at = 0, time.monotonic()
    while True:
        seen = after
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        try:
            with transport.stream(path, headers=headers, read_timeout=SILENCE_SECONDS) as response:
                if response.status_code == _NO_CONTENT:
                    return
                ended, parser = False, Parser()
                for line in response.iter_lines():
                    message = parser.feed(line)
                    if message is None:
                        continue
                    event = read_text(Event, message.data)
                    after, ended = event.id, event.event in LAST_EVENTS
                    yield event
                if ended:  # a retry may append events after such an event
                    return
                failures, answered_at = 0, time.monotonic()
        except (ApiError, ServiceUnreachable) as error:
            if after > seen:
                failures, answered_at = 0, time.monotonic()
            if not is_short_outage(error, answered_at):
                raise
            failures += 1
        sleep(backoff(failures))
