"""The leases of the current batch.

A thread asks twice a second which of the batch's samples are still the worker's own. After `stall_seconds`
without progress, from the first prompt to the last uploaded file, it gives the samples back and ends the
process: nothing else frees a stuck device. The worker's heartbeat, which renews the leases, stops then too.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from actograph.contract.errors import WorkerStalled
from storage.index.database import Database
from storage.queue import leases
from storage.queue.leases import LeasedSample
from worker.signals.attempts import Attempts
from worker.signals.process_end import STALLED, last_write
from worker.signals.stop_signal import StopSignal

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
#: seconds for a batch to end by itself after a stop
STOP_GRACE_SECONDS = 5.0


class LeaseKeeper:
    """Watches the leases of one batch; use as a context manager around its run."""

    def __init__(
        self,
        database: Database,
        worker_id: str,
        held: Sequence[LeasedSample],
        stop: StopSignal,
        *,
        stall_seconds: float,
        end_process: Callable[[int], None] = os._exit,
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._held = list(held)
        #: sample -> token of what is still the worker's
        self._mine: Mapping[str, int] = {lease.id: lease.token for lease in held}
        self._stop = stop
        self._stall_seconds = stall_seconds
        self._end_process = end_process
        self._silent_seconds = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)

    def __enter__(self) -> "LeaseKeeper":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def progress(self, _step: int = 0) -> None:
        """Note a decode step, a scored sample or a stored piece of a file."""
        self._silent_seconds = 0.0

    @property
    def is_stalled(self) -> bool:
        return self._silent_seconds > self._stall_seconds

    def should_stop(self) -> bool:
        """Whether the batch ends now: all its leases are lost, or the worker stops."""
        return not self._mine or self._stop.seconds_since_set() > STOP_GRACE_SECONDS

    def has_lost(self, lease: LeasedSample) -> bool:
        """Whether this sample is the worker's no more: its job has ended, or its lease is lost."""
        return self._mine.get(lease.id) != lease.token

    def _run(self) -> None:
        attempts = Attempts("the index cannot be asked for the leases")
        looked_at = time.monotonic()
        while not self._done.wait(POLL_SECONDS):
            # the time of a suspended process does not count
            looked_at, before = time.monotonic(), looked_at
            self._silent_seconds += min(looked_at - before, 4 * POLL_SECONDS)
            if self.is_stalled:
                self._end_stalled()
                return
            attempts.run(self._look)

    def _look(self) -> None:
        with self._database.read() as session:
            found = leases.mine(session, self._worker_id)
        self._mine = {one.id: one.token for one in self._held if found.get(one.id) == one.token}

    def _end_stalled(self) -> None:
        """Give the samples back, as far as the index answers, and end the process."""
        error = WorkerStalled(
            f"no progress for {self._stall_seconds:g} s (ACTOGRAPH_STALL_SECONDS); the worker was restarted"
        )
        logger.critical("no progress for %.0f s: the worker process ends", self._silent_seconds)

        def give_up() -> None:
            with self._database.write() as session:
                leases.give_back(session, self._held, error)

        last_write(give_up)
        self._end_process(STALLED)
