"""Threads that store the sessions of ended samples: as many as wait, within a bound.

A store that is far away takes a few round trips for each session, so a slow one needs many at once. Sessions
that wait or are being stored count as running: beyond `MOST_WAITING` no sample is claimed.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from worker.sample.leased_run import LeasedRun
from worker.sample.outcome import Interrupted, Outcome
from worker.sample.unforeseen import unforeseen

logger = logging.getLogger(__name__)

#: sessions that are stored at once
WRITERS = 64
#: sessions that are stored or wait for it, before claims stop
MOST_WAITING = 2 * WRITERS
_LOOK_SECONDS = 0.1


class SessionWriters:
    """Each session has a thread of its own; none of them outlives the process."""

    def __init__(
        self,
        store: Callable[[LeasedRun], None],
        ended: Callable[[Outcome, bool], None],
        lost: Callable[[LeasedRun], None],
    ) -> None:
        """
        Args:
            store: stores a sample's session; its outcome has the result or the error.
            ended: takes the outcome of each sample, and whether it is committed at once.
            lost: takes a sample whose session was stored too late, see `close`.
        """
        self._store, self._ended, self._lost = store, ended, lost
        self._waiting: dict[str, LeasedRun] = {}
        self._turns = threading.Semaphore(WRITERS)
        self._changed = threading.Condition()

    @property
    def waiting(self) -> int:
        """Sessions that are stored or wait for it."""
        return len(self._waiting)

    def add(self, sample: LeasedRun) -> None:
        """Store a sample's session."""
        with self._changed:
            self._waiting[sample.lease.key] = sample
        threading.Thread(target=self._run, args=(sample,), name="session-writer", daemon=True).start()

    def close(self, gives_up: Callable[[], bool]) -> None:
        """Wait until all sessions are stored. Once `gives_up` is true, other samples are given back."""
        with self._changed:
            while self._waiting and not gives_up():
                self._changed.wait(_LOOK_SECONDS)
            left, self._waiting = self._waiting, {}
        for sample in left.values():
            self._ended(replace(sample.outcome, recorded=None, results=None, error=Interrupted()), True)
        if left:
            logger.warning("%d sessions were not stored in time; their samples are given back", len(left))

    def _run(self, sample: LeasedRun) -> None:
        with self._turns:
            if sample.lease.key not in self._waiting:
                return
            try:
                self._store(sample)
            except Exception as error:  # noqa: BLE001 (it fails this sample alone, and the log has the trace)
                sample.fail(unforeseen(error, f"while the session of sample {sample.lease.id} was stored"))
        with self._changed:
            is_late = self._waiting.pop(sample.lease.key, None) is None
            self._changed.notify_all()
        if is_late:
            self._lost(sample)
        else:
            self._ended(sample.outcome, sample.at_once)
