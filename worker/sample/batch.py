"""A batch of samples on the engine: each turn is one engine batch of all talks that go on.

Nothing here writes to the index. A sample that fails has its reason in its outcome; the others go on.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from actograph.contract.errors import ServiceUnavailable
from actograph.contract.specs import SamplingSpec
from storage.artifacts.store import ArtifactStore
from storage.samples import LeasedSample
from worker.engine.model.device_errors import is_device_lost
from worker.engine.model.memory import memory_snapshot
from worker.engine.requests import RowChunk
from worker.sample.generation import BatchGenerator, RunningLeases, as_error
from worker.sample.outcome import Outcome
from worker.sample.talk import Talk
from worker.sample.watched_store import watched

logger = logging.getLogger(__name__)

#: sessions that are stored at once
WRITERS = 4


class BatchRunner:
    """Runs the batches of one job during one slice.

    Attributes:
        memory: bytes before and after the last batch.
    """

    def __init__(self, store: ArtifactStore, generator: BatchGenerator) -> None:
        self.generator = generator
        self.memory: dict[str, int] = {}
        self._store = store

    def run(self, leases: Sequence[LeasedSample], keeper: RunningLeases) -> list[Outcome]:
        """Outcomes of all samples, in order; samples cut short by `keeper` have the error `Interrupted`.

        Session files of completed samples are in the store when this returns.

        Raises:
            Exception: the device is lost (`is_device_lost`); only a new process helps.
        """
        store = watched(self._store, keeper.progress)
        talks = []
        for lease in leases:
            keeper.progress()
            talks.append(Talk(lease, self.generator, store))
            if (prompt := talks[-1].outcome.prompt) is not None:
                self.generator.note_prompt(len(prompt.token_ids))
        try:
            if any(talk.running for talk in talks):
                self._talk(talks, keeper)
            for talk in talks:  # before any session is stored: a sample that cannot be scored keeps none
                keeper.progress()
                talk.score()
            _store(talks)
        finally:
            for talk in talks:
                talk.discard()
        return [talk.outcome for talk in talks]

    def _talk(self, talks: Sequence[Talk], keeper: RunningLeases) -> None:
        """Run all turns; an error of the engine is the error of each talk that runs."""
        devices = self.generator.engine.model.devices
        before, started = memory_snapshot(devices), time.monotonic()
        try:
            while running := _next(talks):
                for sampling, group in _by_sampling(running):
                    self._turn(group, sampling, keeper)
        except Exception as error:
            if is_device_lost(error):
                raise
            logger.exception("a batch of job %s failed", talks[0].lease.job_id)
            for talk in talks:
                if talk.running:
                    talk.fail(as_error(error))
            return
        after, seconds = memory_snapshot(devices), time.monotonic() - started
        self.memory = {f"batch_before_{key}": size for key, size in before.items()}
        self.memory |= {f"batch_after_{key}": size for key, size in after.items()}
        logger.info("batch of %d ran %.1f s; memory before %s, after %s", len(talks), seconds, before, after)

    def _turn(self, talks: Sequence[Talk], sampling: SamplingSpec | None, keeper: RunningLeases) -> None:
        requests = [talk.request() for talk in talks]
        sink = None if self.generator.provenance is None else _Sink(talks)
        leases = [talk.lease for talk in talks]
        generations = self.generator.run(leases, requests, sampling, sink, keeper)
        for talk, generation in zip(talks, generations, strict=True):
            talk.end_turn(generation)


def _next(talks: Sequence[Talk]) -> list[Talk]:
    """The talks of the next turn; one that restarts, because memory ran out, runs alone."""
    running = [talk for talk in talks if talk.running]
    return [talk for talk in running if not talk.has_restarted] or running[:1]


def _by_sampling(talks: Sequence[Talk]) -> list[tuple[SamplingSpec | None, list[Talk]]]:
    """Groups with equal sampling, in the order of their first members; each sample has its own seed."""
    groups: list[tuple[SamplingSpec | None, list[Talk]]] = []
    for talk in talks:
        sampling = talk.sampling and talk.sampling.model_copy(update={"seed": 0})
        group = next((members for known, members in groups if known == sampling), None)
        if group is None:
            groups.append((sampling, group := []))
        group.append(talk)
    return groups


def _store(talks: Sequence[Talk]) -> None:
    """Store the sessions of finished talks, several at once."""
    away: list[ServiceUnavailable] = []

    def store(talk: Talk) -> None:
        if away and talk.outcome.error is None:
            talk.fail(away[0])  # each would wait for the store in vain
            return
        talk.store()
        if isinstance(talk.outcome.error, ServiceUnavailable):
            away.append(talk.outcome.error)

    with ThreadPoolExecutor(WRITERS, thread_name_prefix="session-writer") as pool:
        list(pool.map(store, talks))


@dataclass(frozen=True)
class _Sink:
    """The engine's `RowSink`: rows go to their talk."""

    talks: Sequence[Talk]

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
        self.talks[index].write(rows)

    def reset(self, index: int) -> None:
        self.talks[index].reset()
