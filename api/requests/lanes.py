"""Bounds on requests that work or wait for long, so that cheap ones always find a thread.

Requests run in one pool of threads. Each kind of long request has a lane with few places, which together are
fewer than the threads. A request waits for its place without a thread, and for a bounded time. One owner may
have a part of a lane only.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from starlette.routing import compile_path

from actograph.contract.errors import ServiceBusy

#: a request waits so long for its place
WAIT_SECONDS = 10.0

#: (lane, method, path); other requests are short, and chats have threads of their own
_TABLE = """
reads   POST   /v1/estimate
reads   GET    /v1/jobs/{job_id}/comparison
reads   POST   /v1/jobs/{job_id}/comparison/activations
reads   POST   /v1/jobs/{job_id}/rescore
reads   POST   /v1/store/verify
exports GET    /v1/jobs/{job_id}/export
writes  POST   /v1/store/gc
writes  POST   /v1/jobs
writes  DELETE /v1/jobs/{job_id}
writes  POST   /v1/jobs/{job_id}/cancel
writes  POST   /v1/jobs/{job_id}/retry
writes  DELETE /v1/activations/sessions
writes  PATCH  /v1/activations/sessions
writes  DELETE /v1/activations/session/{session_id}
writes  PATCH  /v1/activations/session/{session_id}
writes  DELETE /v1/activations/sessions/{session_id}
writes  PATCH  /v1/activations/sessions/{session_id}
writes  POST   /v1/files
writes  DELETE /v1/files/{file_id}
writes  POST   /v1/batches
writes  POST   /v1/batches/{batch_id}/cancel
writes  POST   /v1/interventions
writes  DELETE /v1/interventions/{vector_id}
writes  POST   /v1/models/load
writes  POST   /models/load
writes  POST   /v1/queue/pause
writes  POST   /v1/queue/resume
writes  POST   /v1/keys
writes  PATCH  /v1/keys/{key_id}
writes  DELETE /v1/keys/{key_id}
"""
#: POST routes that take no body
_BODILESS = ("/cancel", "/retry", "/resume", "/gc", "/verify")


@dataclass(frozen=True, kw_only=True)
class Size:
    """Places of a lane."""

    places: int
    #: of one owner
    of_owner: int
    #: requests of one owner that may wait
    waiting: int


SIZES: Mapping[str, Size] = {
    "reads": Size(places=4, of_owner=2, waiting=64),
    "writes": Size(places=16, of_owner=12, waiting=256),
    # a place is held until the client has read the export
    "exports": Size(places=8, of_owner=4, waiting=16),
}


class Lane:
    """Places for requests of one kind. For the event loop alone."""

    def __init__(self, name: str, size: Size) -> None:
        self._name = name
        self._size = size
        self._held: Counter[str] = Counter()
        self._queue: list[tuple[str, asyncio.Future[None]]] = []

    async def enter(self, owner: str) -> None:
        """Take a place, which `leave` gives back.

        Raises:
            ServiceBusy: too many requests wait already, or none left its place in time.
        """
        if self._has_place(owner):
            self._held[owner] += 1
            return
        if sum(waiting == owner for waiting, _ in self._queue) >= self._size.waiting:
            raise self._busy()
        entry = (owner, asyncio.get_running_loop().create_future())
        self._queue.append(entry)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await asyncio.shield(entry[1])
        except BaseException as error:
            if entry in self._queue:
                self._queue.remove(entry)
            elif entry[1].done():  # the place came in the same moment
                self.leave(owner)
            if isinstance(error, TimeoutError):
                raise self._busy() from None
            raise

    def leave(self, owner: str) -> None:
        """Give a place back, to the request that has waited longest among those that may have it."""
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        for entry in list(self._queue):
            if self._has_place(entry[0]):
                self._queue.remove(entry)
                self._held[entry[0]] += 1
                entry[1].set_result(None)

    def _has_place(self, owner: str) -> bool:
        return self._held.total() < self._size.places and self._held[owner] < self._size.of_owner

    def _busy(self) -> ServiceBusy:
        return ServiceBusy(
            f"{self._size.of_owner} requests of the kind {self._name} are served at a time for one owner, "
            f"{self._size.places} for all, and others wait already; send this one again in a moment"
        )


class Lanes:
    """The lanes of one process."""

    def __init__(self) -> None:
        self._lanes = {name: Lane(name, size) for name, size in SIZES.items()}
        self._patterns: dict[str, list[tuple[re.Pattern[str], Lane]]] = {}
        for name, method, path in table():
            pattern = compile_path(path)[0]
            self._patterns.setdefault(method, []).append((pattern, self._lanes[name]))

    def of(self, method: str, path: str) -> Lane | None:
        """The lane of a request; None if it needs none."""
        for pattern, lane in self._patterns.get(method, ()):
            if pattern.match(path):
                return lane
        return None


def table() -> Iterable[tuple[str, str, str]]:
    """(lane, method, path) of every route that has a lane."""
    for line in _TABLE.strip().splitlines():
        lane, method, path = line.split()
        yield lane, method, path


def takes_body(method: str, path: str) -> bool:
    """Whether a route reads a body.

    Its place is taken when the body is complete: a slow body must not hold one.
    """
    return method in ("POST", "PATCH") and not path.endswith(_BODILESS)
