"""Pauses in the use of Redis after a failure."""

import logging
import time


class Outage:
    """Calls to Redis are skipped for some seconds after each failure, so that nobody waits for it."""

    def __init__(self, log: logging.Logger, consequence: str, *, pause_seconds: float) -> None:
        """`consequence` says in the log what happens meanwhile."""
        self._log = log
        self._consequence = consequence
        self._pause_seconds = pause_seconds
        self._until = float("-inf")

    def holds(self) -> bool:
        """Whether to skip the call."""
        return time.monotonic() < self._until

    def note(self, error: Exception) -> None:
        """Begin a pause."""
        self._log.warning("Redis failed, %s: %s", self._consequence, type(error).__name__)
        self._until = time.monotonic() + self._pause_seconds
