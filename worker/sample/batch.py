"""A batch of samples as one run of the engine: talks come and go between passes.

Nothing here writes to the index. A sample that fails has its reason in its outcome; the others go on.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from actograph.contract.errors import ServiceUnavailable
from storage.artifacts.store import ArtifactStore
from storage.queue.leases import LeasedSample
from worker.engine.model.device_errors import is_device_lost
from worker.engine.model.memory import memory_snapshot
from worker.engine.requests import Generation, RowChunk
from worker.engine.runs import RunRequest
from worker.sample.live_text import LiveText
from worker.sample.open_job import OpenJob, RunningLeases, as_error
from worker.sample.outcome import Interrupted, Outcome
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

    def __init__(self, store: ArtifactStore, job: OpenJob) -> None:
        self.job = job
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
            talks.append(Talk(lease, self.job, store))
        try:
            if any(talk.running for talk in talks):
                self._talk(talks, keeper)
        finally:
            for talk in talks:
                talk.discard()
        return [talk.outcome for talk in talks]

    def _talk(self, talks: Sequence[Talk], keeper: RunningLeases) -> None:
        """Run all talks; an error of the engine is the error of each talk that runs."""
        engine = self.job.engine
        before, started = memory_snapshot(engine.model.devices), time.monotonic()
        run = _Run(talks, keeper, self.job)
        try:
            with run:
                engine.run(source=run, control=run, results=run, sink=run, options=self.job.options)
        except Exception as error:
            if is_device_lost(error):
                raise
            logger.exception("a batch of job %s failed", talks[0].lease.job_id)
            for talk in talks:
                if talk.running:
                    talk.fail(as_error(error))
        for talk in talks:
            if talk.running:  # the run was stopped before its turn
                talk.fail(Interrupted())
        after, seconds = memory_snapshot(engine.model.devices), time.monotonic() - started
        self.memory = {f"batch_before_{key}": size for key, size in before.items()}
        self.memory |= {f"batch_after_{key}": size for key, size in after.items()}
        logger.info("batch of %d ran %.1f s; memory before %s, after %s", len(talks), seconds, before, after)


class _Run:
    """A batch as the engine sees it: its source, control, results and sink.

    A talk that ends is scored and stored while the others go on.
    """

    def __init__(self, talks: Sequence[Talk], keeper: RunningLeases, job: OpenJob) -> None:
        self._talks = {talk.lease.id: talk for talk in talks}
        #: talks that wait for their first turn, and for a further one
        self._first = deque(talk for talk in talks if talk.running)
        self._further: deque[Talk] = deque()
        self._open = len(self._first)
        self._changed = threading.Condition()
        self._keeper = keeper
        self._live = None if job.live is None else LiveText(job.live, job.engine.model.tokenizer)
        self._finishing = ThreadPoolExecutor(WRITERS, thread_name_prefix="session-writer")
        #: the store's error, once it is away
        self._away: ServiceUnavailable | None = None
        self._scoring = threading.Lock()

    def __enter__(self) -> None:
        if self._live is not None:
            self._live.start()

    def __exit__(self, *_: object) -> None:
        self._finishing.shutdown()
        if self._live is not None:
            self._live.stop()

    # source

    @property
    def exhausted(self) -> bool:
        with self._changed:
            return not self._open

    def pull(self, room: int, *, urgent: int, wait: float) -> list[RunRequest]:
        with self._changed:
            if wait and not self._further and not self._first and self._open:
                self._changed.wait(wait)
            chosen: list[Talk] = []
            for queue in (self._further, self._first):
                while queue and len(chosen) < room:
                    chosen.append(queue.popleft())
        return [talk.request() for talk in chosen]

    # control

    def stopped(self) -> bool:
        return self._keeper.should_stop()

    def dropped(self, key: str) -> bool:
        return self._keeper.has_lost(self._talks[key].lease)

    def beat(self) -> None:
        self._keeper.progress()

    # results and sink

    def started(self, key: str, generated_ids: Sequence[int]) -> None:
        talk = self._talks[key]
        if self._live is not None and talk.lease.input.get("live") and talk.sampling is not None:
            self._live.follow(key, generated_ids, talk.sampling.stop)

    def write(self, key: str, rows: Mapping[str, RowChunk]) -> None:
        self._talks[key].write(rows)

    def done(self, generation: Generation) -> None:
        """Take a turn's result. Raises if the device is lost."""
        talk = self._talks[generation.key]
        self._keeper.progress()
        talk.end_turn(generation)
        if not talk.running:
            self._finishing.submit(self._finish, talk)
        with self._changed:
            if talk.running:
                self._further.append(talk)
            else:
                self._open -= 1
            self._changed.notify_all()

    def _finish(self, talk: Talk) -> None:
        self._keeper.progress()
        with self._scoring:  # before its session is stored: a sample that cannot be scored keeps none
            talk.score()
        if self._away is not None and talk.outcome.error is None:
            talk.fail(self._away)  # each would wait for the store in vain
            return
        talk.store()
        if isinstance(talk.outcome.error, ServiceUnavailable):
            self._away = talk.outcome.error
