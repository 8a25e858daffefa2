"""Commits of a worker: outcomes go to the index, and files that nobody owns go."""

import time
from collections.abc import Sequence
from contextlib import suppress

from actograph.contract.errors import ServiceUnavailable
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from storage.sessions.writer import session_prefix
from worker.drain.commit import Committed, commit_each
from worker.drain.pauses import Pauses
from worker.drain.slices import Slice
from worker.sample.outcome import Outcome
from worker.signals.stop_signal import StopSignal


class Committer:
    """Commits outcomes of prepared jobs, and measures the time between commits for forecasts."""

    def __init__(
        self, database: Database, store: ArtifactStore, pauses: Pauses, worker_id: str, stop: StopSignal
    ) -> None:
        self._database, self._store, self._pauses = database, store, pauses
        self._worker_id, self._stop = worker_id, stop
        #: end of the time that was counted to samples
        self._measured_to = 0.0

    def begins(self) -> None:
        """Count time from now on."""
        self._measured_to = time.monotonic()

    def store(
        self, current: Slice, outcomes: Sequence[Outcome], *, idle_model: str | None = None
    ) -> Committed:
        """Commit outcomes; remove the files of lost leases and note whether the store is away.

        Args:
            idle_model: the worker's model, if the worker is idle once the jobs of these outcomes have ended.
        """
        before, self._measured_to = self._measured_to, time.monotonic()
        done = commit_each(
            self._database,
            outcomes,
            current.provenance,
            self._measured_to - before,
            worker_id=self._worker_id,
            idle_model=idle_model,
            give_up=self._stop.is_set,
        )
        for outcome in done.lost:
            if outcome.recorded is not None:
                # the sweep removes files that cannot be removed now
                with suppress(ServiceUnavailable, OSError):
                    self._store.delete_prefix(session_prefix(outcome.recorded.session_id))
        if done.outage is not None:
            self._pauses.outage.note(done.outage)
        elif done.kept:
            self._pauses.outage.is_over()
        return done
