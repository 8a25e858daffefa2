"""Memory budget shared by all dataset readers of a process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from actograph.contract.errors import ServiceBusy

#: smaller requests are not counted: their sum over all threads stays small
FREE_BYTES = 1 << 20
WAIT_SECONDS = 5.0


class MemoryBudget:
    """A thread-safe budget. Readers wait for memory for some seconds, and are then refused."""

    def __init__(self, total_bytes: int, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._total = self._free = total_bytes
        self._wait_seconds = wait_seconds
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, size: int, purpose: str) -> Iterator[None]:
        """Hold `size` bytes within the block; a request above the whole budget runs alone.

        Raises:
            ServiceBusy: other readers used the memory for the whole wait.
        """
        if size < FREE_BYTES:
            yield
            return
        size = min(size, self._total)
        with self._changed:
            if not self._changed.wait_for(lambda: size <= self._free, self._wait_seconds):
                raise ServiceBusy(
                    f"{purpose} needs {size:,} bytes of memory, but other requests use the {self._total:,} "
                    "bytes shared by all; send the request again in a moment"
                )
            self._free -= size
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()


#: for dataset rows during decoding
DATASETS = MemoryBudget(128 << 20)
