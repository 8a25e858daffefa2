"""Pauses while the store is unavailable: a full disk, an S3 server that does not answer.

Samples whose sessions could not be stored are given back and run again later. Without a pause the device
would generate them in vain, again and again.
"""

import logging
import time
from collections.abc import Callable

from actograph.contract.errors import ServiceUnavailable
from storage.artifacts.store import ArtifactStore

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


class StoreOutage:
    """No sample starts after `note` until a check finds the store working. Pauses between checks grow."""

    def __init__(self, store: ArtifactStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._pause = 0.0
        self._next_look = 0.0
        #: the last failure; None while the store works
        self.reason: ServiceUnavailable | None = None

    def note(self, reason: ServiceUnavailable) -> None:
        """Note that a session could not be stored."""
        self._pause = min(max(FIRST_PAUSE_SECONDS, 2 * self._pause), LONGEST_PAUSE_SECONDS)
        self._next_look = self._clock() + self._pause
        self.reason = reason
        logger.warning("samples are given back, and no sample starts for %.0f s: %s", self._pause, reason)

    def is_over(self) -> None:
        """Note that sessions were stored."""
        self._pause, self.reason = 0.0, None

    def holds(self) -> bool:
        """Whether no sample may start now."""
        if not self._pause:
            return False
        if self._clock() < self._next_look:
            return True
        try:
            self._store.check()
        except ServiceUnavailable as error:
            self.note(error)
            return True
        self.reason = None
        return False
