"""Keeps a unit's leases alive while it makes progress, and sees cancel and stop meanwhile.

A thread of its own renews the leases, so that a long decode loses none. It renews only while
the unit reports progress, from its first prompt to its last uploaded file: a hung device must give
its samples back, and then the process ends, since nothing else gets a stuck kernel off the device.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from actograph.contract.errors import WorkerStalled
from storage import samples
from storage.index.database import Database
from storage.jobs import job_control, jobs
from storage.samples import LeasedSample
from worker.signals.exit_status import STALLED
from worker.signals.last_words import write_last_words
from worker.signals.stop_signal import StopSignal

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
#: a unit in hand may end by itself for so long after a stop was asked for
STOP_GRACE_SECONDS = 5.0


class LeaseKeeper:
    """Use as a context manager around the running of one unit."""

    def __init__(
        self,
        database: Database,
        leases: Sequence[LeasedSample],
        stop: StopSignal,
        *,
        lease_seconds: float,
        stall_seconds: float,
        end_process: Callable[[int], None] = os._exit,
    ) -> None:
        self._database = database
        self._leases = list(leases)
        self._job_ids = {lease.job_id for lease in leases}
        self._ended: set[str] = set()
        self._stop = stop
        self._lease_seconds = lease_seconds
        self._stall_seconds = stall_seconds
        self._end_process = end_process
        self._silent_seconds = 0.0
        self._is_failing = False
        self._cancelled = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)

    def __enter__(self) -> "LeaseKeeper":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def progress(self, _step: int = 0) -> None:
        """The unit moves on: a decode step, a sample that was scored, a piece of a file."""
        self._silent_seconds = 0.0

    def should_stop(self) -> bool:
        """Asked between decode steps: every job of the unit was cancelled or every lease is lost, or
        the worker is stopping and the unit had its time to end by itself."""
        return self._cancelled.is_set() or self._stop.seconds_since_set() > STOP_GRACE_SECONDS

    def has_ended(self, job_id: str) -> bool:
        """Whether one job of the unit was cancelled or has ended otherwise."""
        return job_id in self._ended

    def _run(self) -> None:
        renewed_at = looked_at = time.monotonic()
        pause = min(POLL_SECONDS, self._lease_seconds / 6)
        while not self._done.wait(pause):
            # a process that was stopped and goes on was not silent meanwhile: none of its threads ran
            looked_at, before = time.monotonic(), looked_at
            self._silent_seconds += min(looked_at - before, 4 * pause)
            if self._silent_seconds > self._stall_seconds:
                self._end_stalled()
                return
            worked = self._attempt(self._look_for_end)
            if time.monotonic() - renewed_at > self._lease_seconds / 3:
                worked = self._attempt(self._renew) and worked
                renewed_at = time.monotonic() if worked else renewed_at
            self._is_failing = not worked

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Whether it could be done; no error ends the thread, whose end would look like the worker's."""
        try:
            work()
        except Exception:
            if not self._is_failing:
                logger.warning("the leases cannot be looked after; trying again", exc_info=True)
            self._is_failing = True
            return False
        return True

    def _end_stalled(self) -> None:
        """Leave word of the hang, as far as the index answers, and end the process."""
        error = WorkerStalled(
            f"no progress for {self._stall_seconds:g} s (ACTOGRAPH_STALL_SECONDS), also when the sample "
            "was run alone; the worker ended itself each time"
        )
        logger.critical("no progress for %.0f s: the worker ends itself", self._silent_seconds)

        def give_up() -> None:
            with self._database.write() as session:
                samples.give_up(session, self._leases, error)

        write_last_words(give_up)
        self._end_process(STALLED)

    def _look_for_end(self) -> None:
        """Which jobs were cancelled, have failed elsewhere or have passed their deadline."""
        with self._database.read() as session:
            found = job_control.states(session, self._job_ids)
        for job_id in (job_id for job_id, (_, is_overdue) in found.items() if is_overdue):
            with self._database.write() as session:
                job_control.fail_overdue(session, job_id)
        running = {j for j, (status, late) in found.items() if status in jobs.ACTIVE and not late}
        self._ended = self._job_ids - running
        if not running:
            self._cancelled.set()

    def _renew(self) -> None:
        with self._database.write() as session:
            held = samples.renew(session, self._leases, lease_seconds=self._lease_seconds)
        if not held:
            self._cancelled.set()
