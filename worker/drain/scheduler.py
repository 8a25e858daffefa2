"""The scheduler: one run of the engine, as its source, control, results and sink.

While the run goes on, a thread claims samples for it and builds their prompts. Samples that end are scored by
a pool, stored by writers and committed by a thread of their own. So the engine waits for the index never, and
for the store only when sessions come faster than it takes them: then nothing is claimed. A sample that fails
has its reason in its outcome; the others go on.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from actograph.contract.errors import ServiceUnavailable
from storage.artifacts.store import ArtifactStore
from storage.queue.leases import SUSPECT_AFTER, LeasedSample
from storage.sessions.writer import session_prefix
from worker.drain import session_writers
from worker.drain.commits import Commits
from worker.drain.held_leases import HeldLeases
from worker.drain.session_writers import SessionWriters
from worker.drain.store_outage import StoreOutage
from worker.engine.messages import Generation, Request, Rows
from worker.runners.patch import PatchRunner
from worker.sample.leased_run import LeasedRun
from worker.sample.live_text import LiveText
from worker.sample.open_job import OpenJob
from worker.sample.outcome import Interrupted, Outcome
from worker.sample.pair_run import CELL, PairRun
from worker.sample.sample_run import SampleRun
from worker.sample.unforeseen import unforeseen
from worker.sample.watched_store import watched
from worker.signals.hints import Hints, Looks

logger = logging.getLogger(__name__)

#: samples that are scored at once
SCORERS = 4
#: samples whose tools are called at once
CALLERS = 4
#: time between two looks for chats, without hints that there are any
CHAT_SECONDS = 0.05
#: the same for other samples
LOOK_SECONDS = 0.25


class Work(NamedTuple):
    """Claimed samples, each with its open job."""

    samples: Sequence[tuple[OpenJob, LeasedSample]]
    #: chats that take part in the next pass
    urgent: bool = False


class RunEnds(Exception):
    """Nothing joins the run any more: a stop, a pause, or what comes next needs a run of its own."""


#: room, whether only urgent chats are wanted -> work; None if there is none now. Raises RunEnds.
More = Callable[[int, bool], Work | None]


class Scheduler:
    """One run. It ends once nothing runs and nothing waits, or nothing may join."""

    def __init__(
        self,
        first: Work,
        more: More | None,
        *,
        slots: int,
        held_leases: HeldLeases,
        commits: Commits,
        store: ArtifactStore,
        outage: StoreOutage | None = None,
        hints: Hints | None = None,
    ) -> None:
        """
        Args:
            more: claims samples that join the run; None: nothing joins. Suspects run without company.
            slots: samples that run at once.
            outage: of the store; sessions wait for its end.
        """
        self._first_work, self._more = first, more
        #: one of the jobs; all have the same engine and sizes
        self._job = first.samples[0][0]
        self._engine = self._job.engine
        if any(lease.losses >= SUSPECT_AFTER for _, lease in first.samples):
            self._more = None
        #: samples that wait, so that a free slot need not wait for the index
        self._ahead = max(1, slots // 8)
        self._held_leases, self._commits = held_leases, commits
        self._hints = hints or Hints()
        self._outage = outage or StoreOutage(store)
        self._plain_store, self._store = store, watched(store, held_leases.progress, self._waits)
        #: key of its lease -> sample that has not ended
        self._running: dict[str, LeasedRun] = {}
        #: pairs with requests that the engine has not had; the first one goes on until it has none
        self._pairs: deque[PairRun] = deque()
        self._slots = slots
        #: urgent samples, samples that wait for a further turn, and for their first one
        self._urgent: deque[LeasedRun] = deque()
        self._further: deque[LeasedRun] = deque()
        self._waiting: deque[LeasedRun] = deque()
        #: free places at the engine's last pull: for urgent samples, and for others
        self._room = (0, 0)
        #: True once nothing joins any more
        self._closed = False
        self._changed = threading.Condition()
        self._feeder = threading.Thread(target=self._feed, name="claims", daemon=True)
        self._finishing = ThreadPoolExecutor(SCORERS, thread_name_prefix="scores")
        self._writers = SessionWriters(self._store_session, self._commit, self._remove_late)
        self._calling = ThreadPoolExecutor(CALLERS, thread_name_prefix="tools")
        self._decoding = threading.Lock()
        #: the store's error, once it is away
        self._away: ServiceUnavailable | None = None
        self._live: LiveText | None = None
        #: what went wrong besides samples
        self._error: Exception | None = None

    def run(self) -> None:
        """Run all that was claimed; its outcomes are with `commits` when this returns.

        Raises:
            Exception: the engine failed, or claims fail for a reason beyond the index. Samples that had not
                ended are still among the held leases.
        """
        started = time.monotonic()
        failure: Exception | None = None
        self._feeder.start()
        try:
            done = self._engine.run(
                source=self, control=self, results=self, sink=self, options=self._job.options
            )
            logger.info("a run of %.1f s: %s", time.monotonic() - started, done)
        except Exception as error:  # noqa: BLE001 (raised below)
            failure = error
        finally:
            self._close()
            self._feeder.join()
        self._calling.shutdown(cancel_futures=True)
        for sample in list(self._running.values()):  # the run was stopped, or failed, before their turn
            if failure is not None and sample.was_asked:
                sample.discard()
            else:
                sample.fail(Interrupted())
                self._end(sample)
        self._finishing.shutdown()
        self._writers.close(self._held_leases.gives_up)
        if self._live is not None:
            self._live.stop()
        failure = failure or self._error
        if failure is not None:
            raise failure

    @property
    def sessions_to_store(self) -> int:
        """Sessions of ended samples that are stored or wait for it."""
        return self._writers.waiting

    @property
    def waits_for_store(self) -> bool:
        """Whether nothing is claimed because sessions come faster than the store takes them."""
        return self._writers.waiting >= session_writers.MOST_WAITING or self._plain_store.is_crowded()

    # claims

    def _feed(self) -> None:
        try:
            self._add(self._first_work)
            if self._more is not None:
                self._claim(self._more)
        except RunEnds:
            pass
        except Exception as error:  # noqa: BLE001 (raised where the run ends)
            self._error = error
        finally:
            self._close()

    def _claim(self, more: More) -> None:
        """Claim whatever the engine has room for, until nothing runs and nothing waits."""
        chats, others = Looks(self._hints, CHAT_SECONDS), Looks(self._hints, LOOK_SECONDS)
        while not self._closed:
            with self._changed:
                for_chats = self._room[0] - len(self._urgent)
                room = self._room[1] + self._ahead - len(self._waiting)
                idle = not self._running
            found = None
            if for_chats > 0 and chats.is_due():
                chats.begin()
                found = more(for_chats, True)
                if found is None:
                    chats.found_nothing()
            has_room = room > self._ahead // 2 and not self.waits_for_store
            if found is None and has_room and (idle or others.is_due()):
                others.begin()
                found = more(room, False)
                if found is None:
                    others.found_nothing()
                    if idle:
                        return
            if found is not None:
                self._add(found)
            else:
                with self._changed:
                    self._changed.wait(CHAT_SECONDS)

    def _add(self, work: Work) -> None:
        """Build the prompts of claimed samples."""
        self._held_leases.add([lease for _, lease in work.samples])
        for job, lease in work.samples:
            self._held_leases.progress()
            kind = PairRun if isinstance(job.runner, PatchRunner) else SampleRun
            sample = kind(lease, job, self._store, urgent=work.urgent)
            with self._changed:
                self._running[lease.key] = sample
                if sample.running and isinstance(sample, PairRun):
                    self._pairs.append(sample)
                elif sample.running:
                    (self._urgent if sample.urgent else self._waiting).append(sample)
            self._wake()
            if not sample.running:
                self._end(sample)

    def _close(self) -> None:
        with self._changed:
            self._closed = True
        self._wake()

    def _wake(self) -> None:
        """Let the claims and the engine look for what has changed."""
        with self._changed:
            self._changed.notify_all()
        self._engine.wake()

    # source

    @property
    def exhausted(self) -> bool:
        with self._changed:
            return self._closed and not self._running

    def pull(self, room: int, *, urgent: int, wait: float) -> list[Request]:
        with self._changed:
            is_over = self._closed and not self._running
            if wait and not (self._urgent or self._further or self._waiting or self._pairs or is_over):
                self._changed.wait(wait)
            chats = _take(urgent, self._urgent)
            others = _take(room, self._further, self._urgent)
            taken = [*others, *self._in_turn(room - len(others))]
            self._room = (urgent - len(chats), room - len(taken))
            self._changed.notify_all()
        asked = [sample.request(priority=True) for sample in chats]
        return asked + [one if isinstance(one, Request) else one.request() for one in taken]

    def _in_turn(self, room: int) -> list[LeasedRun | Request]:
        """Samples that wait and requests of pairs, in turns: a pair has hundreds."""
        asked: list[LeasedRun | Request] = []
        while len(asked) < room and (self._waiting or self._pairs):
            if self._waiting:
                asked.append(self._waiting.popleft())
            if self._pairs and len(asked) < room:
                pair = self._pairs[0]
                if pair.unsent:
                    asked.append(pair.request())
                if not pair.unsent:
                    self._pairs.popleft()
        return asked

    @property
    def filling(self) -> set[str]:
        """Ids of jobs whose pairs have requests for all slots, so that no further pair is claimed."""
        with self._changed:
            unsent: dict[str, int] = {}
            for pair in self._pairs:
                unsent[pair.lease.job_id] = unsent.get(pair.lease.job_id, 0) + pair.unsent
        return {job_id for job_id, count in unsent.items() if count >= self._slots}

    # control

    def stopped(self) -> bool:
        return self._held_leases.should_stop() or self._commits.has_failed

    def dropped(self, key: str) -> bool:
        return self._held_leases.has_lost(self._run_of(key).lease)

    def _run_of(self, key: str) -> LeasedRun:
        """The sample of a request."""
        return self._running[key.partition(CELL)[0]]

    def beat(self) -> None:
        self._held_leases.progress()

    # results and sink

    def started(self, key: str, generated_ids: Sequence[int]) -> None:
        sample = self._run_of(key)
        if sample.live is None or sample.sampling is None:
            return
        if self._live is None:
            self._live = LiveText(sample.live, self._job.engine.tokenizer)
            self._live.start()
        sampling = sample.sampling
        end_ids = self._job.end_ids(sampling)
        self._live.follow(sample.lease.id, generated_ids, sampling.stop, end_ids, sample.readouts)

    def valued(self, key: str, token: int, values: Mapping[str, float]) -> None:
        sample = self._running.get(key.partition(CELL)[0])
        if sample is not None and self._live is not None:  # else it has ended meanwhile
            self._live.value(sample.lease.id, token, values)

    def write(self, key: str, rows: Mapping[str, Rows]) -> None:
        self._run_of(key).write(rows)

    def done(self, generation: Generation) -> None:
        """Take a turn's result."""
        sample = self._run_of(generation.key)
        self._held_leases.progress()
        if generation.finish_reason == "cancelled" and generation.error is not None:
            return  # the run has failed: `run` raises the error, and the sample is given back
        sample.end_turn(generation)
        if sample.running and isinstance(sample, PairRun):
            return  # others of its requests run, or wait
        if sample.running and sample.calls_tools:
            self._calling.submit(self._follow, sample)
        else:
            self._follow(sample)

    def _follow(self, sample: LeasedRun) -> None:
        """Let a sample go on, or end it."""
        if sample.running:
            sample.follow()
        self._held_leases.progress()
        if not sample.running:
            self._end(sample)
            return
        with self._changed:
            self._further.append(sample)
        self._wake()

    def _end(self, sample: LeasedRun) -> None:
        """Score, store and commit an ended sample, in a thread of the pool."""
        # a commit waits for others that end soon, if there are any
        at_once = sample.live is not None or len(self._running) == 1
        sample.at_once = at_once
        self._finishing.submit(self._finish, sample)
        if sample.sums is not None:
            self._engine.forget(sample.sums)
        with self._changed:
            del self._running[sample.lease.key]
        self._wake()

    def _finish(self, sample: LeasedRun) -> None:
        """Decode and score a sample; its session is stored by a writer."""
        self._held_leases.progress()
        try:
            with self._decoding:
                sample.decode()
            sample.score()  # before its session is stored: a sample that cannot be scored keeps none
            self._held_leases.progress()
            if sample.has_session:
                self._writers.add(sample)
                return
            sample.discard()
        except Exception as error:  # noqa: BLE001 (it fails this sample alone, and the log has the trace)
            sample.fail(unforeseen(error, f"while sample {sample.lease.id} was finished"))
        self._commit(sample.outcome, sample.at_once)

    def _store_session(self, sample: LeasedRun) -> None:
        if self._away is not None:
            sample.fail(self._away)  # each would wait for the store in vain
        else:
            sample.store()
        if isinstance(sample.outcome.error, ServiceUnavailable):
            self._away = sample.outcome.error
        sample.discard()

    def _commit(self, outcome: Outcome, at_once: bool) -> None:
        if self._live is not None:  # who reads the end has had all values
            self._live.send_values(outcome.lease.id)
        self._commits.add(outcome, at_once=at_once)
        if self._live is not None:
            self._live.end(outcome.lease.id)

    def _remove_late(self, sample: LeasedRun) -> None:
        """Remove a session whose sample was given back before it was stored."""
        if (session_id := sample.outcome.session_id) is not None:
            with suppress(ServiceUnavailable, OSError):
                self._plain_store.delete_many({session_prefix(session_id): None})

    def _waits(self, reason: ServiceUnavailable) -> bool:
        """Wait for the end of an outage of the store."""
        return self._outage.wait(
            reason, gives_up=self._held_leases.gives_up, progress=self._held_leases.progress
        )


def _take(most: int, *queues: deque[LeasedRun]) -> list[LeasedRun]:
    chosen: list[LeasedRun] = []
    for queue in queues:
        while queue and len(chosen) < most:
            chosen.append(queue.popleft())
    return chosen
