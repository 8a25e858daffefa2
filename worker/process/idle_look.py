"""Asks the index for work while the worker is idle, so that no job depends on a message."""

import logging
import random
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class IdleLook:
    """A thread that calls `look` every `seconds`, jittered; at once again if it returns True."""

    def __init__(self, look: Callable[[], bool], *, seconds: float) -> None:
        self._look = look
        self._seconds = seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="idle-look", daemon=True)
        self._is_failing = False

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        """End the thread; a slice that it runs ends first, as the worker's stop signal is set."""
        self._done.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        pause = 0.0
        while not self._done.wait(pause):
            # jittered, so that many workers do not ask at the same moment
            pause = 0.0 if self._attempt() else self._seconds * random.uniform(0.5, 1.5)

    def _attempt(self) -> bool:
        try:
            more = self._look()
        except Exception:
            if not self._is_failing:
                logger.exception("an idle worker could not look for work; it tries again")
            self._is_failing = True
            return False
        self._is_failing = False
        return more
