"""A running analysis: what it reads from, when it must end, what it saves, and its results."""

import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.analyses import AnalysisResult, SkippedSession
from actograph.contract.errors import ActographError
from actograph.contract.interventions import NewVector
from storage.analyses import state
from storage.artifacts.store import ArtifactStore
from storage.index import events
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue.leases import LeasedSample

Arrays = Mapping[str, NDArray[Any]]
PROGRESS = "analysis.progress"
#: time between two saves of the state
SAVE_SECONDS = 5.0
#: skipped sessions that a result lists
LISTED = 100


class AnalysisInterrupted(ActographError):
    """The analysis ends here: the worker stops, or the sample is not its own any more."""


@dataclass(frozen=True, kw_only=True)
class AnalysisResults:
    """The results of an analysis.

    Attributes:
        tables: name -> lines of a CSV file.
        arrays: of `directions.npz`; empty for none.
        vectors: to store with the results.
        summary: one line for people.
    """

    body: AnalysisResult
    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    arrays: Arrays = field(default_factory=dict)
    vectors: Sequence[NewVector] = ()
    summary: str


class AnalysisRun:
    """One leased sample of an analysis job."""

    def __init__(
        self,
        *,
        database: Database,
        store: ArtifactStore,
        lease: LeasedSample,
        owner: str,
        must_end: Callable[[], bool],
        save_seconds: float = SAVE_SECONDS,
    ) -> None:
        self.database, self.store = database, store
        self._lease, self._owner = lease, owner
        self._must_end = must_end
        self._save_seconds = save_seconds
        self._saved_at = time.monotonic()

    def saved(self) -> Arrays | None:
        """The state of an earlier lease; None without one."""
        data = state.load(self.store, self._lease.id)
        if data is None:
            return None
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return dict(arrays)

    def step(self, done: int, total: int, arrays: Callable[[], Arrays]) -> None:
        """Note that a part is done; save the state and log the progress now and then.

        Args:
            done, total: parts, such as sessions.
            arrays: makes the state.

        Raises:
            Interrupted: the analysis must end here; its state is saved.
        """
        ends = self._must_end()
        if ends or time.monotonic() - self._saved_at >= self._save_seconds:
            file = io.BytesIO()
            np.savez_compressed(file, **arrays())  # type: ignore[arg-type]
            if state.save(self.database, self.store, self._lease, self._owner, file.getvalue()):
                self._log(done, total)
            self._saved_at = time.monotonic()
        if ends:
            raise AnalysisInterrupted("the analysis ends before it is complete")

    def check(self) -> None:
        """Raise Interrupted if the analysis must end within a part; its last saved state stays."""
        if self._must_end():
            raise AnalysisInterrupted("the analysis ends before it is complete")

    def _log(self, done: int, total: int) -> None:
        with self.database.write() as session:
            if jobs.lock_active(session, self._lease.job_id) is not None:
                events.append(session, self._lease.job_id, PROGRESS, {"done": done, "total": total})


def left_out(skipped: Mapping[str, str]) -> dict[str, Any]:
    """Fields of a result about skipped sessions, given as id -> reason."""
    listed = [SkippedSession(session_id=one, reason=why) for one, why in list(skipped.items())[:LISTED]]
    return {"skipped": listed, "skipped_sessions": len(skipped)}
