"""A run of the streaming engine: samples are claimed as places become free, and committed as they finish.

A thread brings samples: first chats, then the job whose turn it is. Each sample runs in a thread of its own,
from its prompt to its stored session, and another thread commits what has ended. The thread that called `run`
only decodes.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue

from sqlalchemy.orm import Session

from actograph.contract.errors import NotFound
from actograph.settings import Settings
from storage import samples
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.queue import chat_batches, pause
from storage.samples import LeasedSample
from storage.tables.models import JobRow
from worker.drain.job_choice import JobChoice
from worker.drain.job_models import JobModels
from worker.drain.lease import LeaseKeeper
from worker.drain.pauses import Pauses
from worker.drain.slices import Slice
from worker.engine.engine import Engine
from worker.engine.model.device_errors import is_device_lost
from worker.engine.runs import RunStatistics
from worker.engine.streaming.loop import GUESTS
from worker.engine.streaming.slots import CPU_SLOTS, GPU_SLOTS
from worker.sample.outcome import Outcome
from worker.sample.shared_run import SharedRun
from worker.sample.unforeseen import unforeseen

logger = logging.getLogger(__name__)

#: a waiting chat is found this soon while other samples run
LOOK_SECONDS = 0.05
#: samples that have left the engine and are not stored yet, for each place
_UNSTORED = 2


class Stream:
    """One run, from its first sample until no sample that can join it waits.

    Args:
        first: the job that runs first; its capture is the run's.
        prepare: prepares a job; None if it cannot run.
        store: commits outcomes of a job; False if the store is away.
        goes_on: whether other jobs follow when the first one has had its turn.
    """

    def __init__(
        self,
        first: Slice,
        *,
        settings: Settings,
        database: Database,
        engine: Engine,
        worker_id: str,
        choice: JobChoice,
        models: JobModels,
        pauses: Pauses,
        keeper: LeaseKeeper,
        prepare: Callable[[str], Slice | None],
        store: Callable[[Slice, Sequence[Outcome]], bool],
        is_stopping: Callable[[], bool],
        goes_on: bool,
    ) -> None:
        self._settings, self._database, self._engine = settings, database, engine
        self._worker_id, self._choice, self._models = worker_id, choice, models
        self._pauses, self._keeper = pauses, keeper
        self._prepare, self._store, self._is_stopping = prepare, store, is_stopping
        self._goes_on = goes_on
        self._generator = first.batches.generator
        self._shared = SharedRun(keeper)
        on_gpu = engine.model.device.type == "cuda"
        self._most_active = _UNSTORED * (settings.batch_size or (GPU_SLOTS if on_gpu else CPU_SLOTS))
        #: the job whose turn it is, when its turn began, and whether it had samples in it
        self._current: Slice | None = None if first.chat is not None else first
        self._since, self._had_samples = time.monotonic(), False
        #: whether a chat waits for a place of its capture; it keeps nobody else waiting
        self._chat_waits = False
        #: jobs that have joined, as they were prepared
        self._joined = {first.job_id: first}
        #: running samples whose capture is not the run's
        self._guests: set[str] = set()
        #: whether the run ends with the samples that it has
        self._leaves = False
        self._finished: SimpleQueue[tuple[Slice, Outcome] | None] = SimpleQueue()
        self._error: BaseException | None = None
        self._statistics = RunStatistics()
        self.has_run = False

    def run(self) -> None:
        """Run samples until none is left that can join.

        Raises:
            Exception: the device is lost (`is_device_lost`), or the database is away.
        """
        committer = threading.Thread(target=self._watch, args=(self._commit,), name="committer")
        feeder = threading.Thread(target=self._watch, args=(self._feed,), name="feeder")
        error: BaseException | None = None
        with ThreadPoolExecutor(self._most_active, "sample") as self._pool:
            committer.start()
            try:
                with self._keeper:
                    feeder.start()
                    error = self._decode()
                    feeder.join()
                    self._pool.shutdown()
            finally:
                self._finished.put(None)
                committer.join()
        if error is not None and is_device_lost(error):
            raise error
        if self._error is not None:
            raise self._error
        self._note_savings(self._statistics)

    def _decode(self) -> BaseException | None:
        """Run the engine. Returns its error, which is the error of all samples that were running."""
        streaming, shared = self._engine.streaming(), self._shared
        assert streaming is not None and self._generator.runner.sampling is not None
        error: BaseException | None = None
        try:
            done = streaming.run(
                self._generator.plan(self._generator.runner.sampling),
                source=shared,
                results=shared,
                control=shared,
                sink=shared,
                options=self._generator.options,
                most=self._settings.batch_size,
            )
            logger.info("a run has ended: %s", done)
            self._statistics = done
        except Exception as failure:
            error = failure  # of each sample; a lost device is raised again
            logger.error("a run of the streaming engine failed", exc_info=failure)
            self._leaves = True
        shared.end(error)
        return error

    def _note_savings(self, done: RunStatistics) -> None:
        """Log the savings of shared prefixes in the job, if the run had only one."""
        if len(self._joined) > 1 or not (done.shared_tokens or done.merged_reads):
            return
        (job_id,) = self._joined
        with suppress(NotFound), self._database.write() as session:
            jobs.note_shared(
                session,
                job_id,
                computed_tokens=done.computed_tokens,
                shared_tokens=done.shared_tokens,
                merged_reads=done.merged_reads,
            )

    def _watch(self, work: Callable[[], None]) -> None:
        """Keep the error of a thread; the run ends with the samples that it has."""
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (raised in the thread that called `run`)
            self._error = self._error or error
            self._leaves = True
        finally:
            if work == self._feed:
                self._shared.close()

    # samples come

    def _feed(self) -> None:
        """Bring samples until none is left that can join."""
        while not (self._leaves or self._shared.has_ended or self._is_stopping()):
            unstored = self._most_active - self._shared.active
            if unstored <= 0:
                self._shared.wait_for_end_of_one(LOOK_SECONDS)
                continue
            room = min(self._shared.wait_for_room(LOOK_SECONDS), unstored)
            if not room:
                continue
            if self._pauses.hold():
                return
            brought = self._bring_chats(room)
            if room > brought and not self._leaves:
                brought += self._bring(room - brought)
            if not brought and not self._leaves:
                if not self._shared.active:
                    return
                self._shared.wait_for_end_of_one(LOOK_SECONDS)

    def _bring_chats(self, room: int) -> int:
        """Bring waiting chats, oldest first. Returns the number of samples."""
        brought, self._chat_waits = 0, False
        while brought < room and not self._leaves:
            with self._database.read() as session:
                held = self._pauses.held_owners(session)
                chat = chat_batches.oldest(session, self._models.name or "", held=held)
                if chat is None:
                    break
                can_join = self._can_join(session, chat.job_id)
            current = self._joins(chat.job_id) if can_join else None
            if current is None:
                self._leaves = True
                break
            leases = self._claim_chat(current, room - brought)
            if leases is None:
                self._chat_waits = True
                break
            if not leases:  # its next choice cannot run here
                self._leaves = True
            brought += len(leases)
        return brought

    def _claim_chat(self, current: Slice, room: int) -> list[LeasedSample] | None:
        """Claim samples of a chat and begin them; None if it must wait for a place of its capture."""
        if not self._captures_alike(current):
            room = min(room, GUESTS - len(self._guests))
        if room <= 0:
            return None
        with self._database.write() as session:
            if pause.holds(session) or control.fail_overdue(session, current.job_id):
                return []
            leases = self._claimed(session, current, room)
            if leases:
                jobs.start(session, current.job_id)
        self._begin(current, leases)
        return leases

    def _bring(self, room: int) -> int:
        """Bring samples of the job whose turn it is. Returns their number."""
        if self._current is not None and self._is_over(self._current):
            self._current = None
            self._leaves = not self._goes_on
        is_renewed = False
        while not self._leaves:
            current = self._current
            if current is None and not self._goes_on:
                self._leaves = not self._chat_waits
                return 0
            if current is None:
                current = self._current = self._next()
                if current is None:
                    return 0
                self._since, self._had_samples = time.monotonic(), False
            leases, is_left = self._claim(current, room)
            if leases:
                self._had_samples = True
                self._begin(current, leases)
                return len(leases)
            self._current = None
            if not is_left:
                self._leaves = not self._goes_on
            elif current.lines is None or is_renewed:
                self._leaves = True  # its next sample must run alone
            else:  # its next line needs another preparation
                is_renewed = True
                del self._joined[current.job_id]
                self._current = self._joins(current.job_id)
                self._leaves = self._current is None or not self._captures_alike(self._current)
        return 0

    def _claim(self, current: Slice, room: int) -> tuple[list[LeasedSample], bool]:
        """Claim samples of a job; without any, whether it has some that cannot run now."""
        with self._database.write() as session:
            # the last look for a pause or a deadline before the claim
            if pause.holds(session) or control.fail_overdue(session, current.job_id):
                self._leaves = True
                return [], False
            if current.owner in self._pauses.held_owners(session):
                return [], False
            leases = self._claimed(session, current, room)
            if leases:
                return leases, False
            with suppress(NotFound):  # deleted since
                jobs.end_if_done(session, current.job_id)
            is_active = jobs.status_of(session, current.job_id) in jobs.ACTIVE
            return [], is_active and samples.next_input(session, current.job_id) is not None

    def _claimed(self, session: Session, current: Slice, room: int) -> list[LeasedSample]:
        return samples.claim(
            session,
            current.job_id,
            worker_id=self._worker_id,
            count=room,
            lease_seconds=self._settings.lease_seconds,
            fits=current.fits,
            alone=not self._shared.active,
        )

    def _is_over(self, current: Slice) -> bool:
        """Whether the turn of a job is over."""
        if self._chat_waits or not self._had_samples:
            return False
        seconds = time.monotonic() - self._since
        if seconds > self._settings.slice_seconds:
            return True
        with self._database.read() as session:
            return self._choice.is_over(session, current, seconds, self._pauses.held_owners(session))

    def _next(self) -> Slice | None:
        """The next job, begun and prepared, if it can join; if it cannot, the run ends for it."""
        with self._database.read() as session:
            held = self._pauses.held_owners(session)
            waiting = self._choice.next_job(session, held)
            if waiting is None:
                return None
            if self._chat_waits or not self._can_join(session, waiting.id):
                self._leaves = not self._chat_waits
                return None
        with self._database.write() as session:
            locked = session.get(JobRow, waiting.id)
            if locked is None or locked.status not in jobs.ACTIVE:
                return None
            chosen = self._choice.begin(session, locked, held)
        if chosen is None:
            return None
        with self._database.read() as session:
            can_join = self._can_join(session, chosen)
        current = self._joins(chosen) if can_join else None
        if current is None or not self._captures_alike(current):
            self._leaves = True
            return None
        return current

    def _can_join(self, session: Session, job_id: str) -> bool:
        """Whether a job runs on the held model as it is."""
        row = session.get(JobRow, job_id)
        return row is not None and row.kind != jobs.LOAD and self._models.runs(row)

    def _joins(self, job_id: str) -> Slice | None:
        """A job prepared for this run; None if it needs another run."""
        current = self._joined.get(job_id)
        if current is None:
            current = self._prepare(job_id)
        if current is None or not current.streams:
            return None
        self._joined[job_id] = current
        return current

    def _captures_alike(self, current: Slice) -> bool:
        plan = current.batches.generator.capture_plan
        return plan is None or plan == self._generator.capture_plan

    def _begin(self, current: Slice, leases: Collection[LeasedSample]) -> None:
        """Run these samples, each in a thread of its own."""
        current.batches.generator.shared = self._shared
        self._keeper.hold(list(leases))
        self.has_run = self.has_run or bool(leases)
        for lease in leases:
            self._shared.begin(lease.key)
            if not self._captures_alike(current):
                self._guests.add(lease.key)
            self._pool.submit(self._run_sample, current, lease)
            if lease.runs_alone:
                while self._shared.active and not self._shared.has_ended:
                    self._shared.wait_for_end_of_one(LOOK_SECONDS)

    # samples end

    def _run_sample(self, current: Slice, lease: LeasedSample) -> None:
        try:
            (outcome,) = current.batches.run([lease], self._keeper)
        except Exception as error:  # noqa: BLE001 (it fails this sample alone, and the log has the trace)
            if is_device_lost(error):  # the drain gives the sample back
                self._error = self._error or error
                self._leaves = True
                self._shared.ended(lease.key)
                return
            outcome = Outcome(lease=lease, error=unforeseen(error, f"while sample {lease.id} ran"))
        self._finished.put((current, outcome))
        self._guests.discard(lease.key)
        self._shared.ended(lease.key)

    def _commit(self) -> None:
        """Commit samples as they end, those that have ended meanwhile together."""
        while (item := self._finished.get()) is not None:
            ended = [item]
            with suppress(Empty):
                while (more := self._finished.get_nowait()) is not None:
                    ended.append(more)
                self._finished.put(None)
            for current in {id(one): one for one, _ in ended}.values():
                own = [outcome for one, outcome in ended if one is current]
                if not self._store(current, own):
                    self._leaves = True
                for outcome in own:
                    self._keeper.let_go(outcome.lease)
