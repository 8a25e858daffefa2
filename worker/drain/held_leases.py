"""The leases of the samples that a worker runs.

The worker's heartbeat asks which of them are still the worker's own, and a thread does so after a hint, or
twice a second if there are no hints. After `stall_seconds` without progress, from the first prompt to the
last uploaded file, it ends the engine's process: nothing else frees a stuck device.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from sqlalchemy.orm import Session

from actograph.contract.errors import WorkerStalled
from storage.index.database import Database
from storage.queue import leases
from storage.queue.leases import LeasedSample
from worker.signals.attempts import Attempts
from worker.signals.hints import Hints, Looks
from worker.signals.stop_signal import StopSignal

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
#: most seconds for running samples to end by themselves after a stop
STOP_GRACE_SECONDS = 5.0


class HeldLeases:
    """Watches leases; use as a context manager around a run."""

    def __init__(
        self,
        database: Database,
        worker_id: str,
        stop: StopSignal,
        *,
        stall_seconds: float = math.inf,
        stalled: Callable[[WorkerStalled], None] = lambda reason: None,
        hints: Hints | None = None,
        grace_seconds: float = 2 * STOP_GRACE_SECONDS,
    ) -> None:
        """
        Args:
            stalled: ends the engine's process for this reason.
            grace_seconds: time to end and store running samples after a stop.
        """
        self._grace_seconds = grace_seconds
        self._database = database
        self._worker_id = worker_id
        self._stop = stop
        self._stall_seconds = stall_seconds
        self._stalled = stalled
        self._looks = Looks(hints or Hints(), POLL_SECONDS)
        #: by key
        self._held: dict[str, LeasedSample] = {}
        #: keys of leases that were taken away
        self._lost: set[str] = set()
        self._lock = threading.Lock()
        self._silent_seconds = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-held_leases", daemon=True)

    def __enter__(self) -> "HeldLeases":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def held(self) -> Sequence[LeasedSample]:
        """Leases that were not released."""
        with self._lock:
            return list(self._held.values())

    def add(self, claimed: Iterable[LeasedSample]) -> None:
        """Watch further leases."""
        with self._lock:
            self._held.update((lease.key, lease) for lease in claimed)

    def release(self, ended: Iterable[LeasedSample]) -> None:
        """Watch these no longer: they were committed or given back."""
        with self._lock:
            for lease in ended:
                self._held.pop(lease.key, None)
                self._lost.discard(lease.key)

    def progress(self) -> None:
        """Note a decode step, a scored sample or a stored piece of a file."""
        self._silent_seconds = 0.0

    def should_stop(self) -> bool:
        """Whether running samples end now: the worker stops."""
        return self._stop.seconds_since_set() > min(STOP_GRACE_SECONDS, self._grace_seconds / 2)

    def gives_up(self) -> bool:
        """Whether ended samples that are not stored are given back now: the worker stops."""
        return self._stop.seconds_since_set() > self._grace_seconds

    def has_lost(self, lease: LeasedSample) -> bool:
        """Whether this sample is the worker's no more: its job has ended, or its lease is lost."""
        return lease.key in self._lost

    def _run(self) -> None:
        attempts = Attempts("the index cannot be asked for the leases")
        looked_at = time.monotonic()
        while not self._done.wait(POLL_SECONDS):
            # the time of a suspended process does not count
            looked_at, before = time.monotonic(), looked_at
            self._silent_seconds += min(looked_at - before, 4 * POLL_SECONDS)
            if self._silent_seconds > self._stall_seconds:
                logger.critical("no progress for %.0f s: the engine's process is ended", self._silent_seconds)
                self._silent_seconds = 0.0
                self._stalled(
                    WorkerStalled(
                        f"no progress for {self._stall_seconds:g} s (ACTOGRAPH_STALL_SECONDS); the engine's "
                        "process is started again"
                    )
                )
            if self._looks.is_due():
                attempts.run(self._look)

    def _look(self) -> None:
        self._looks.begin()
        with self._database.read() as session:
            self.check(session)
        self._looks.found_nothing()

    def check(self, session: Session) -> None:
        """Ask which samples are still the worker's own."""
        held = self.held  # before the question: a claim may come between it and its answer
        found = leases.mine(session, self._worker_id)
        with self._lock:
            self._lost |= {
                lease.key for lease in held if found.get(lease.id) != lease.token and lease.key in self._held
            }
