"""Memory that all readers of a process share: each holds the bytes it needs while it needs them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from actograph.contract.errors import ServiceBusy

#: Readers that ask for less hold nothing: the sum over all request threads stays small.
FREE_BYTES = 1 << 20
WAIT_SECONDS = 5.0


class MemoryBudget:
    """Thread-safe. A reader that needs more than is free waits a little and is then turned away."""

    def __init__(self, total_bytes: int, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._total = self._free = total_bytes
        self._wait_seconds = wait_seconds
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, size: int, purpose: str) -> Iterator[None]:
        """Hold `size` bytes within the block; more than the whole budget is held alone.

        Raises:
            ServiceBusy: other readers held too much for the whole wait.
        """
        if size < FREE_BYTES:
            yield
            return
        size = min(size, self._total)
        with self._changed:
            if not self._changed.wait_for(lambda: size <= self._free, self._wait_seconds):
                raise ServiceBusy(
                    f"{purpose} needs {size:,} bytes of memory and other requests hold the "
                    f"{self._total:,} bytes that all of them share; send the request again in a moment"
                )
            self._free -= size
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()


#: of this process, for rows of datasets while they are decoded
DATASETS = MemoryBudget(128 << 20)
