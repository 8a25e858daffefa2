"""Lanes: limits on long requests, so that short ones always find a thread.

All requests share one pool of threads. Each kind of long request has a lane with few places, and all lanes
together have fewer places than there are threads. A waiting request holds no thread, and its wait is limited.
One owner never holds all places of a lane. `api.routing` names the lane of each route.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from actograph.contract.errors import ServiceBusy

#: how long a request waits for a place
WAIT_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """Places of a lane."""

    places: int
    #: places that one owner may hold
    of_owner: int
    #: waiting requests that one owner may have
    waiting: int


SIZES: Mapping[str, Size] = {
    "reads": Size(places=4, of_owner=2, waiting=64),
    "writes": Size(places=16, of_owner=12, waiting=256),
    # an export holds its place until the client has read it
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
        """Take a place; `leave` returns it.

        Raises:
            ServiceBusy: too many requests wait already, or no place became free in time.
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
            elif entry[1].done():  # the place became free in the same moment
                self.leave(owner)
            if isinstance(error, TimeoutError):
                raise self._busy() from None
            raise

    def leave(self, owner: str) -> None:
        """Return a place. The longest-waiting request that may have it gets it."""
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
            f"{self._size.of_owner} requests of the kind {self._name} run at a time for one owner, "
            f"{self._size.places} for all, and others wait already; send this one again in a moment"
        )
