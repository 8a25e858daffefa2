"""Everything that an analysis needs: its spec, its sessions, their rows, and a checkpoint."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.errors import InvalidRequest
from actograph.contract.models.model_identity import ModelIdentity
from actograph.contract.specs import AnyAnalysisSpec
from actograph.contract.specs.analysis.source import selected_hooks
from storage.artifacts.store import ArtifactStore
from storage.index import events
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import pins
from storage.sessions import analysed
from storage.sessions.reader import SessionReader
from worker.analysis.state import State, StoredState
from worker.drain.lease import LeaseKeeper

#: shortest time between two progress events
EVENT_SECONDS = 2.0


class Stopped(Exception):
    """The job was cancelled, its lease is lost, or the worker stops. The state is stored."""


@dataclass(frozen=True, kw_only=True)
class SourceJob:
    """A job whose sessions are read."""

    id: str
    kind: str
    model: str
    spec: Mapping[str, Any]
    identity_sha256: str | None
    #: its model; None if no worker has loaded it
    identity: ModelIdentity | None
    #: hooks that it captured, and those that the spec selects
    captured: list[str]
    hooks: list[str]
    session_ids: list[str]


class Context:
    """One run of an analysis job.

    Attributes:
        spec: the job's spec.
        jobs: the jobs that it reads, in the order of the spec.
        database, store: for kinds that read more than rows, such as scores.
    """

    def __init__(
        self,
        *,
        job_id: str,
        spec: AnyAnalysisSpec,
        database: Database,
        store: ArtifactStore,
        keeper: LeaseKeeper,
        state: StoredState,
        memory_bytes: int,
        checkpoint_seconds: float,
    ) -> None:
        self.job_id = job_id
        self.spec = spec
        self.database = database
        self.store = store
        self._keeper = keeper
        self._state = state
        #: most memory for rows
        self.memory_bytes = memory_bytes
        self._checkpoint_seconds = checkpoint_seconds
        self._saved_at = self._told_at = time.monotonic()
        self.jobs = self._source_jobs()
        #: ids of the sessions that the state contains, in the order of reading
        self.done: list[str] = []

    def resume(self) -> State | None:
        """The stored state of an earlier attempt; None at the first. Sets `done`."""
        state = self._state.read()
        if state is not None:
            self.done = [str(one) for one in state.pop("done")]
        return state

    def sessions(self, job: SourceJob) -> Iterator[SessionReader]:
        """Sessions of a job that are not done yet. Call `finish` after each."""
        done = set(self.done)
        for session_id in job.session_ids:
            if session_id not in done:
                yield SessionReader(self.store, session_id)

    def rows(
        self, reader: SessionReader, hooks: Sequence[str]
    ) -> Iterator[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
        """The selected rows of several hooks, block by block within the worker's memory.

        Yields the tokens of the block [rows], and hook -> values [rows, width].

        Raises:
            InvalidRequest: the hooks do not have rows of the same tokens.
        """
        numbers = {hook: analysed.row_numbers(reader, hook, self.spec) for hook in hooks}
        tokens = [np.asarray(reader.tokens_of_rows(hook), np.int64)[numbers[hook]] for hook in hooks]
        if any(not np.array_equal(one, tokens[0]) for one in tokens[1:]):
            raise InvalidRequest(
                f"the hooks of session {reader.session_id} have rows of different tokens; analyse them in "
                "separate jobs",
                param="hooks",
            )
        # a row is held as stored, and some times in float64 while one hook is summed up
        row_bytes = 8 * sum(reader.tensor_info(hook).shape[1] for hook in hooks)
        at_once = max(1, self.memory_bytes // (2 * max(1, row_bytes)))
        for begin in range(0, len(tokens[0]), at_once):
            block = {}
            for hook in hooks:
                chosen = numbers[hook][begin : begin + at_once]
                block[hook] = next(analysed.rows(reader, hook, chosen)).values
            yield tokens[0][begin : begin + at_once], block
            self._keeper.progress()

    def finish(self, session_id: str, state: Callable[[], State]) -> None:
        """Note that the sums contain a session. Stores the state from time to time.

        Args:
            state: makes the arrays to resume from.

        Raises:
            Stopped: the run must end now.
        """
        self._keeper.progress()
        self.done.append(session_id)
        moment, stops = time.monotonic(), self._keeper.should_stop()
        if stops or moment > self._saved_at + self._checkpoint_seconds:
            self._state.write({**state(), "done": np.array(self.done)})
            self._saved_at = moment
        if stops:
            raise Stopped
        if moment > self._told_at + EVENT_SECONDS:
            self._told_at = moment
            self._tell()

    def working(self) -> None:
        """Note progress within a long step. Raises Stopped if the run must end now."""
        self._keeper.progress()
        if self._keeper.should_stop():
            raise Stopped

    def _tell(self) -> None:
        total = sum(len(job.session_ids) for job in self.jobs)
        with self.database.write() as session:
            if jobs.keep(session, [self.job_id]):
                data = {"sessions": len(self.done), "of": total}
                events.append(session, self.job_id, "analysis.progress", data)

    def _source_jobs(self) -> list[SourceJob]:
        found = []
        with self.database.read() as session:
            for _, job_id in self.spec.read_jobs:
                row = jobs.get(session, job_id)
                pinned = pins.of_job(row)
                found.append(
                    SourceJob(
                        id=job_id,
                        kind=row.kind,
                        model=row.model,
                        spec=row.spec,
                        identity_sha256=row.identity_sha256,
                        identity=None if pinned is None else pinned.identity,
                        captured=row.hooks or [],
                        hooks=selected_hooks(self.spec, row.hooks or []),
                        session_ids=analysed.session_ids(session, self.spec, job_id),
                    )
                )
        return found
