"""Hints that the index may have changed for this worker, and when it looks at the index.

With live hints the worker looks after each of them, and once a heartbeat anyway. Without them it polls.
"""

import threading
import time
from collections.abc import Callable

#: of a worker; its lease is several times as long
HEARTBEAT_SECONDS = 5.0


class Hints:
    """Counts hints. Safe for use from many threads."""

    def __init__(self) -> None:
        #: number of hints so far
        self.count = 0
        #: True while every change of the index gives a hint
        self.are_live = False
        self._lock = threading.Lock()
        self._told: list[Callable[[], object]] = []

    def give(self) -> None:
        """Give a hint."""
        with self._lock:
            self.count += 1
            told = list(self._told)
        for tell in told:
            tell()

    def tell(self, listener: Callable[[], object]) -> None:
        """Call `listener` after each hint, on another thread."""
        with self._lock:
            self._told.append(listener)

    def forget(self, listener: Callable[[], object]) -> None:
        """Call `listener` no more."""
        with self._lock:
            self._told.remove(listener)


class Looks:
    """When to look at the index again: at once after a look with a result, after a hint, or in a while."""

    def __init__(self, hints: Hints, poll_seconds: float) -> None:
        """`poll_seconds`: time between two looks without live hints."""
        self._hints, self._poll_seconds = hints, poll_seconds
        self._began = -1
        self._seen = -1
        self._again_at = float("-inf")

    def is_due(self, moment: float | None = None) -> bool:
        moment = time.monotonic() if moment is None else moment
        return self._hints.count != self._seen or moment >= self._again_at

    def begin(self) -> None:
        """Note that a look begins: a hint from now on makes another one due."""
        self._began = self._hints.count

    def found_nothing(self, moment: float | None = None) -> None:
        """Note that the look that began has found nothing."""
        moment = time.monotonic() if moment is None else moment
        self._seen = self._began
        self._again_at = moment + (HEARTBEAT_SECONDS if self._hints.are_live else self._poll_seconds)
