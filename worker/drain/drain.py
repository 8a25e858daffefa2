"""The drain: claim samples, run them as one batch, commit them, claim the next.

The index decides which job is next. A slice runs one job for a while. Then the drain asks the index again,
until no job is left for this worker. A wake-up starts this, and so does a thread of the idle worker every few
seconds; the wake-up only makes it sooner.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from actograph.contract.chat_job import unit_key
from actograph.contract.errors import ActographError, DeviceLost, NotFound, ServiceUnavailable
from actograph.settings import Settings
from storage.artifacts.store import ArtifactStore
from storage.broker.broker import Broker
from storage.index.database import Database, is_away
from storage.jobs import control, jobs
from storage.queue import chat_batches, claim, leases, model_loads, pause, routing, workers
from storage.queue.leases import LeasedSample
from storage.sessions.writer import session_prefix
from storage.tables.models import JobRow
from worker.drain.commit import store
from worker.drain.job_choice import JobChoice
from worker.drain.job_models import HeldElsewhere, JobModels
from worker.drain.lease import LeaseKeeper
from worker.drain.model_holder import ModelHolder
from worker.drain.pauses import Pauses
from worker.drain.slices import Slice, Slices
from worker.engine.model.device_errors import is_device_lost
from worker.sample.outcome import Outcome
from worker.sample.unforeseen import unforeseen
from worker.signals.process_end import DEVICE_LOST, last_write
from worker.signals.stop_signal import StopSignal

logger = logging.getLogger(__name__)


class Drain:
    """Runs jobs on the worker's model."""

    def __init__(
        self,
        *,
        settings: Settings,
        database: Database,
        store: ArtifactStore,
        broker: Broker,
        models: ModelHolder,
        worker_id: str,
        stop: StopSignal,
        may_load: Sequence[str] = (),
        end_process: Callable[[int], None] = os._exit,
    ) -> None:
        """
        Args:
            may_load: names of the models that this worker may change to.
            end_process: called if a batch hangs or the device is lost; only a new process helps then.
        """
        self._end_process = end_process
        self._settings = settings
        self._database = database
        self._store = store
        self._broker = broker
        self._models = models
        self._worker_id = worker_id
        self._stop = stop
        self._pauses = Pauses(settings, database, store)
        self._model = JobModels(models, database, worker_id)
        self._choice = JobChoice(settings, self._model, worker_id, may_load)
        self._slices = Slices(settings=settings, database=database, store=store, model=self._model)
        #: of the last batch
        self._keeper: LeaseKeeper | None = None
        #: held while a job runs: wake-ups and looks come in their own threads
        self._turn = threading.Lock()
        #: True if the last commit of this slice has shown the worker as idle
        self._is_shown_idle = False
        #: end of the time that was counted to batches of this slice
        self._measured_to = 0.0

    @property
    def is_stalled(self) -> bool:
        """Whether the current batch makes no progress."""
        return self._keeper is not None and self._keeper.is_stalled

    def load(self, model: str) -> None:
        """Load a model before the first job asks for it. Raises ModelRefused."""
        self._models.engine_for(model)

    def serve(self, model: str, hops: int = 0) -> None:
        """Answer a wake-up for a model: run the jobs that the index has for this worker.

        The wake-up goes on to another worker if this one is stopping or busy, or if it ran nothing and an
        idle worker holds the model.

        Args:
            hops: workers that the wake-up may still pass.
        """
        is_idle = self._turn.acquire(blocking=False)
        if not is_idle:
            self._pass_on(model, hops)
            self._turn.acquire()
        try:
            has_run = self._work()
        finally:
            self._turn.release()
        if is_idle and (self._stop.is_set() or (not has_run and self._is_for_another(model))):
            self._pass_on(model, hops)

    def look(self) -> bool:
        """Run the jobs that the index has for this worker, if it is idle. Returns True if any was run."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            return self._work()
        finally:
            self._turn.release()

    def run_slice(self, job_id: str) -> bool:
        """Work on a job, or one whose turn comes first, for a slice of time. Returns True if any was run."""
        with self._failures():
            return not self._stop.is_set() and not self._pauses.hold() and self._run_slice(job_id)
        return False

    def _work(self) -> bool:
        """Run slices until the index has no job for this worker. Returns True if any was run."""
        has_run = False
        with self._failures():
            while not self._stop.is_set() and not self._pauses.hold():
                with self._database.read() as session:
                    job = self._choice.next_job(session, self._pauses.held_owners(session))
                if job is None:
                    break
                has_progress = False
                try:
                    has_progress = self._run_slice(job.id)
                finally:
                    if not has_progress:  # other jobs have their turn meanwhile
                        self._choice.leave(job.id, self._settings.idle_poll_seconds)
                has_run = has_run or has_progress
        return has_run

    def _pass_on(self, model: str, hops: int) -> None:
        if hops > 0:
            self._broker.wake(model, hops - 1)

    def _is_for_another(self, model: str) -> bool:
        if self._model.name == model:
            return False
        with self._database.read() as session:
            return routing.has_idle_holder(session, model)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Log that the database is away; end the process if the device is lost."""
        try:
            yield
        except DBAPIError as error:
            if not is_away(error):
                raise
            logger.warning("the database is unavailable; the current job stops here: %s", error.orig)
        except Exception as error:
            if is_device_lost(error):
                self._end_with_lost_device(error)
            raise

    def _end_with_lost_device(self, error: Exception) -> None:
        """End the process; its parent starts a new one."""
        logger.critical("the device is lost: the worker process ends", exc_info=error)
        reason = DeviceLost(f"the device failed ({type(error).__name__}: {error}); the worker was restarted")

        def mark() -> None:
            with self._database.write() as session:
                workers.set_offline(session, self._worker_id, reason)

        last_write(mark)
        self._end_process(DEVICE_LOST)

    def _run_slice(self, job_id: str) -> bool:
        """Work on a job until it has nothing left, its slice is over, or the worker stops.

        Returns True if a batch was run or a model loaded.
        """
        self._is_shown_idle = False
        with self._database.write() as session:
            row = session.get(JobRow, job_id)
            if row is None or row.status not in jobs.ACTIVE:
                return False
            held = self._pauses.held_owners(session)
            if row.owner in held:
                return False
            if row.kind == jobs.LOAD:
                if not model_loads.begin(session, row, self._worker_id):
                    return False
                workers.set_busy(session, self._worker_id, row.id, row.model)
                chosen: str | None = job_id
            else:
                chosen = self._choice.begin(session, row, held)
        if chosen is None:
            return False
        try:
            if row.kind == jobs.LOAD:
                self._model.load_as_asked(row)
                return True
            return self._run(chosen)
        finally:
            self._set_idle()

    def _set_idle(self) -> None:
        """Show the worker as idle after any slice."""
        if self._is_shown_idle:
            return
        self._database.insist(
            lambda session: workers.set_idle(session, self._worker_id, self._model.name or ""),
            give_up=self._stop.is_set,
        )

    def _run(self, job_id: str) -> bool:
        """Run batches of a job for a slice. Returns True if any was run."""
        has_run = False
        current = self._prepared(job_id)
        if current is not None:
            self._choice.chats.begins(is_chat=current.chat is not None)
        began = self._measured_to = time.monotonic()  # after the load, which no sample caused
        while current is not None and not self._pauses.hold():
            with self._database.write() as session:
                # the last look for a pause or a deadline before the claim
                if pause.holds(session) or control.fail_overdue(session, job_id):
                    break
                if current.owner in self._pauses.held_owners(session):
                    break
                claimed = self._claim(session, current)
                changes = not claimed and _has_other_lines(session, current)
                if not claimed and not changes:
                    with suppress(NotFound):  # deleted since
                        jobs.end_if_done(session, job_id)
                    break
            if changes:
                current = self._prepared(job_id)
                continue
            has_run = True
            if not self._run_batch(current, claimed):
                break
            if self._stop.is_set() or self._is_over(current, time.monotonic() - began):
                break
        return has_run

    def _prepared(self, job_id: str) -> Slice | None:
        """The prepared job; None if it cannot run. The log has the reason."""
        try:
            return self._slices.prepare(job_id)
        except HeldElsewhere:
            logger.info("job %s waits for the worker that holds its pinned model", job_id)
            self._choice.leave(job_id, self._settings.lease_seconds)
        except ServiceUnavailable as error:  # the store of the dataset or of a vector
            self._pauses.outage.note(error)
        except ActographError as error:
            logger.warning("job %s cannot run: %s", job_id, error)
            with self._database.write() as session:
                jobs.fail(session, job_id, error)
        except DBAPIError:
            raise
        except Exception as error:
            reason = unforeseen(error, f"while job {job_id} was prepared")
            with self._database.write() as session:
                control.note_failed_preparation(session, job_id, reason)
            if is_device_lost(error):
                raise
        return None

    def _claim(self, session: Session, current: Slice) -> list[LeasedSample]:
        """Lease the next batch: samples of the job, or of all chats that can share its batch."""
        count = current.batches.generator.size()
        if current.chat is None:
            lines = current.lines
            return claim.of_job(
                session,
                current.job_id,
                worker_id=self._worker_id,
                count=count,
                fits=None if lines is None else lambda stored: unit_key(stored) == lines,
            )
        return chat_batches.claim(
            session,
            current.model,
            current.chat,
            held=self._pauses.held_owners(session),
            worker_id=self._worker_id,
            count=count,
        )

    def _is_over(self, current: Slice, seconds: float) -> bool:
        """Whether a slice of this length ends, by its limit or for a waiting job."""
        if seconds > self._settings.slice_seconds:
            return True
        with self._database.read() as session:
            held = self._pauses.held_owners(session)
            return self._choice.is_over(session, current, seconds, held)

    def _run_batch(self, current: Slice, claimed: Sequence[LeasedSample]) -> bool:
        """Run and commit a batch. Returns False if the store is away or the job has ended with it."""
        if current.refused is not None:
            refused = [Outcome(lease=lease, error=current.refused) for lease in claimed]
            return self._store_batch(current, refused)
        self._keeper = LeaseKeeper(
            self._database,
            self._worker_id,
            claimed,
            self._stop,
            stall_seconds=self._settings.stall_seconds,
            end_process=self._end_process,
        )
        with self._keeper as keeper:
            try:
                outcomes = current.batches.run(claimed, keeper)
            except Exception as error:
                if is_device_lost(error):
                    self._give_up(claimed, error)
                raise
        self._models.batch_memory = current.batches.memory
        return self._store_batch(current, outcomes)

    def _give_up(self, claimed: Sequence[LeasedSample], error: Exception) -> None:
        """Give back the samples of a lost device, which counts a loss of each."""
        reason = DeviceLost(f"the device failed ({type(error).__name__}: {error}); the worker was restarted")

        def give_up() -> None:
            with self._database.write() as session:
                leases.give_back(session, claimed, reason)

        last_write(give_up)

    def _store_batch(self, current: Slice, outcomes: Sequence[Outcome]) -> bool:
        """Commit a batch. Returns False if the store is away or the job has ended with it."""
        before, self._measured_to = self._measured_to, time.monotonic()
        # after a chat the slice may go on with the next one
        idle_model = (self._model.name or "") if current.chat is None else None
        done = store(
            self._database,
            outcomes,
            current.batches.generator.provenance,
            self._measured_to - before,
            worker_id=self._worker_id,
            idle_model=idle_model,
            give_up=self._stop.is_set,
        )
        is_end = done.is_end and current.chat is None
        self._is_shown_idle = is_end
        for session_id in done.lost_sessions:
            # the sweep removes files that cannot be removed now
            with suppress(ServiceUnavailable, OSError):
                self._store.delete_prefix(session_prefix(session_id))
        if done.outage is None:
            if done.is_any:
                self._pauses.outage.is_over()
            return not is_end
        self._pauses.outage.note(done.outage)
        return False


def _has_other_lines(session: Session, current: Slice) -> bool:
    """Whether a batch file has lines left that need another preparation."""
    if current.lines is None or jobs.status_of(session, current.job_id) not in jobs.ACTIVE:
        return False
    return claim.next_input(session, current.job_id) is not None
