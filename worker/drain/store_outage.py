"""Pauses while the store is unavailable: a full disk, an S3 server that does not answer.

No sample starts then, and ended samples keep their sessions until the store works again. Only an outage that
lasts long, or a stop of the worker, gives samples back, which run again later.
"""

import logging
import threading
import time
from collections.abc import Callable

from actograph.contract.errors import ServiceUnavailable
from storage.artifacts.store import ArtifactStore

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 20.0
#: an outage after which samples are given back, since another worker may reach the store
LONGEST_WAIT_SECONDS = 300.0
_LOOK_SECONDS = 0.5


class StoreOutage:
    """No sample starts after `note` until a check finds the store working. Pauses between checks grow.

    Safe for use from many threads; one of them checks at a time.
    """

    def __init__(self, store: ArtifactStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._checking = threading.Lock()
        self._pause = 0.0
        self._next_look = 0.0
        self._since = 0.0
        #: the last failure; None while the store works
        self.reason: ServiceUnavailable | None = None

    def note(self, reason: ServiceUnavailable) -> None:
        """Note that a session could not be stored."""
        with self._lock:
            moment = self._clock()
            if self.reason is not None and moment < self._next_look:
                return  # many writers fail of one outage
            if not self._pause:
                self._since = moment
            self._pause = min(max(FIRST_PAUSE_SECONDS, 2 * self._pause), LONGEST_PAUSE_SECONDS)
            self._next_look = moment + self._pause
            self.reason = reason
        logger.warning("no sample starts for %.0f s: %s", self._pause, reason)

    def is_over(self) -> None:
        """Note that sessions were stored."""
        with self._lock:
            self._pause, self.reason = 0.0, None

    def holds(self) -> bool:
        """Whether no sample may start now."""
        if self.reason is None:
            return False
        if self._clock() < self._next_look or not self._checking.acquire(blocking=False):
            return True
        try:
            self._store.check()
        except ServiceUnavailable as error:
            self.note(error)
            return True
        finally:
            self._checking.release()
        self.reason = None
        return False

    def wait(
        self, reason: ServiceUnavailable, *, gives_up: Callable[[], bool], progress: Callable[[], None]
    ) -> bool:
        """Wait until a check finds the store working. Returns False if a session is not to wait any more.

        Args:
            reason: for which it could not be stored.
            gives_up: True once the worker stops.
            progress: called while this waits.
        """
        self.note(reason)
        while not gives_up() and self._clock() - self._since <= LONGEST_WAIT_SECONDS:
            progress()
            if not self.holds():
                return True
            time.sleep(min(_LOOK_SECONDS, self._pause))
        return False
