"""Renewal of the leases of the running samples.

A thread renews them during a long decode, and looks for cancelled jobs. It renews only while the samples
report progress, from the first prompt to the last uploaded file. After `stall_seconds` without progress it
gives the samples back and ends the process: nothing else frees a stuck device.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from actograph.contract.errors import WorkerStalled
from storage import samples
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.samples import LeasedSample
from worker.signals.attempts import Attempts
from worker.signals.process_end import STALLED, last_write
from worker.signals.stop_signal import StopSignal

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
#: seconds for samples to end by themselves after a stop
STOP_GRACE_SECONDS = 5.0


class LeaseKeeper:
    """Renews the leases of running samples; use as a context manager around their run."""

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
        self._held = {lease.key: lease for lease in leases}
        #: leases that are held no more, by the last renewal, and jobs that have ended
        self._lost: set[str] = set()
        self._ended: set[str] = set()
        self._stop = stop
        self._lease_seconds = lease_seconds
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

    @property
    def held(self) -> list[LeasedSample]:
        """The leases that are renewed."""
        return list(self._held.values())

    def hold(self, leases: Sequence[LeasedSample]) -> None:
        """Renew these leases too."""
        self._held |= {lease.key: lease for lease in leases}

    def let_go(self, lease: LeasedSample) -> None:
        """Renew a lease no more: its sample has ended."""
        self._held.pop(lease.key, None)

    def progress(self, _step: int = 0) -> None:
        """Note a decode step, a scored sample or a stored piece of a file."""
        self._silent_seconds = 0.0

    def should_stop(self) -> bool:
        """Whether all samples end now: their jobs have ended, their leases are lost, or the worker stops."""
        if self._stop.seconds_since_set() > STOP_GRACE_SECONDS:
            return True
        if not (self._ended or self._lost):
            return False
        held = self.held
        return bool(held) and all(one.job_id in self._ended or one.key in self._lost for one in held)

    def has_ended(self, job_id: str) -> bool:
        """Whether this job was cancelled or has ended otherwise."""
        return job_id in self._ended

    def _run(self) -> None:
        attempts = Attempts("the leases cannot be renewed")
        renewed_at = looked_at = time.monotonic()
        pause = min(POLL_SECONDS, self._lease_seconds / 6)
        while not self._done.wait(pause):
            # the time of a suspended process does not count
            looked_at, before = time.monotonic(), looked_at
            self._silent_seconds += min(looked_at - before, 4 * pause)
            if self._silent_seconds > self._stall_seconds:
                self._end_stalled()
                return
            is_due = time.monotonic() - renewed_at > self._lease_seconds / 3
            if attempts.run(self._look_and_renew if is_due else self._look_for_end) and is_due:
                renewed_at = time.monotonic()

    def _look_and_renew(self) -> None:
        try:
            self._look_for_end()
        finally:
            self._renew()

    def _renew(self) -> None:
        leases = self.held
        with self._database.write() as session:
            held = samples.renew(session, leases, lease_seconds=self._lease_seconds)
        self._lost = {lease.key for lease in leases if lease.id not in held}

    def _look_for_end(self) -> None:
        """Note jobs that were cancelled, have ended elsewhere or have passed their deadline."""
        job_ids = {lease.job_id for lease in self.held}
        with self._database.read() as session:
            found = control.states(session, job_ids)
        for job_id in (job_id for job_id, (_, is_overdue) in found.items() if is_overdue):
            with self._database.write() as session:
                control.fail_overdue(session, job_id)
        running = {j for j, (status, late) in found.items() if status in jobs.ACTIVE and not late}
        self._ended = job_ids - running

    def _end_stalled(self) -> None:
        """Give the samples back, as far as the index answers, and end the process."""
        error = WorkerStalled(
            f"no progress for {self._stall_seconds:g} s (ACTOGRAPH_STALL_SECONDS), also when the sample "
            "ran alone; the worker was restarted each time"
        )
        logger.critical("no progress for %.0f s: the worker process ends", self._silent_seconds)

        def give_up() -> None:
            with self._database.write() as session:
                samples.give_up(session, self.held, error)

        last_write(give_up)
        self._end_process(STALLED)
