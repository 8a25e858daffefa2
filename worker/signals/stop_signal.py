"""The stop signal of a worker: its threads look at it between steps."""

import threading
import time


class StopSignal:
    """Set once; a failure is the reason if the end is not orderly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set_at: float | None = None
        self._failure = ""

    def set(self, failure: str = "") -> None:
        """Set the signal; the first failure stays."""
        with self._lock:
            if self._set_at is None:
                self._set_at = time.monotonic()
            self._failure = self._failure or failure

    def failure(self) -> str:
        """Why the worker gave up; "" if it did not."""
        return self._failure

    def is_set(self) -> bool:
        return self._set_at is not None

    def seconds_since_set(self) -> float:
        """Seconds since it was set; 0 while it is not."""
        return 0.0 if self._set_at is None else time.monotonic() - self._set_at
