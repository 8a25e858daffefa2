"""The drain: claim a unit, run it as one batch, commit it, claim the next.

One call works on one job for a slice of time and then lets the next job have its turn. It is called for a
message, and by a thread that asks the index for work while the worker is idle: a message only makes it
sooner. The database decides; a message that comes twice or late finds nothing to claim.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from actograph.contract.batches import unit_key
from actograph.contract.errors import ActographError, DeviceLost, NotFound, ServiceUnavailable
from actograph.settings import Settings
from storage import samples
from storage.artifacts.store import ArtifactStore
from storage.broker.broker import Broker
from storage.index.database import Database, is_away
from storage.jobs import job_control, jobs
from storage.queue import chat_batches, model_loads, pause, workers
from storage.samples import LeasedSample
from storage.sessions.writer import session_prefix
from storage.tables.models import JobRow
from worker.drain.commit import commit_each
from worker.drain.job_choice import JobChoice
from worker.drain.lease import LeaseKeeper
from worker.drain.model_holder import ModelHolder
from worker.drain.model_in_hand import HeldElsewhere, ModelInHand
from worker.drain.pauses import Pauses
from worker.drain.slices import Slice, Slices
from worker.engine.model.device_errors import is_device_lost
from worker.sample.outcome import Outcome
from worker.sample.unforeseen import unforeseen
from worker.signals.exit_status import DEVICE_LOST
from worker.signals.last_words import write_last_words
from worker.signals.stop_signal import StopSignal

logger = logging.getLogger(__name__)

#: a worker that had nothing to do for longer was idle: that time is no sample's
IDLE_SECONDS = 0.5


class Drain:
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
        """`may_load` names the models that this worker may change to. `end_process` is called if a unit hangs
        or the device is lost: nothing but a new process helps then."""
        self._end_process = end_process
        self._settings = settings
        self._database = database
        self._store = store
        self._broker = broker
        self._models = models
        self._worker_id = worker_id
        self._stop = stop
        self._pauses = Pauses(settings, database, store)
        self._model = ModelInHand(models, database, worker_id)
        self._choice = JobChoice(settings, self._model, worker_id, may_load)
        self._slices = Slices(settings=settings, database=database, store=store, model=self._model)
        #: held while a slice runs: messages and looks come in threads of their own
        self._turn = threading.Lock()
        #: the job that the last look sent a message for
        self._announced: str | None = None
        #: a message of this slice could not be sent
        self._is_unheard = False
        #: the last commit of this slice said that the worker has nothing to do
        self._is_shown_idle = False
        #: up to when the time of this slice was counted to its units
        self._measured_to = self._slice_ended_at = 0.0

    def load(self, model: str) -> None:
        """Load a model before the first job asks for it. Raises ModelRefused."""
        self._model.engine_for(model)

    def run_slice(self, job_id: str) -> None:
        """Serve a message: work on the job, or one whose turn comes first, for a slice of time."""
        with self._turn:
            self._guarded_slice(job_id)

    def look(self) -> bool:
        """Begin the next job that the index has for this worker, if it is idle.

        The job's message is sent once more first, so that Celery, which knows who is free, hands it to this
        worker or another. The slice runs here if the message cannot be sent, or nobody took it until the
        next look. Returns True if another look should follow at once.
        """
        if self._stop.is_set() or not self._turn.acquire(blocking=False):
            return False
        try:
            with self._database.read() as session:
                job = self._choice.next_job(session, self._pauses.held_owners(session))
            if job is None or self._pauses.hold():
                self._announced = None
                return False
            if job.id != self._announced and self._broker.wake(job.id, job.priority):
                self._announced = job.id
                return False
            self._announced = None
            return self._guarded_slice(job.id)
        finally:
            self._turn.release()

    def _guarded_slice(self, job_id: str) -> bool:
        """Like `_run_slice`. Returns True if work remains whose message could not be sent."""
        self._is_unheard = False
        try:
            self._run_slice(job_id)
        except DBAPIError as error:
            if not is_away(error):
                raise
            logger.warning("job %s is left for now, the database is away: %s", job_id, error.orig)
        except Exception as error:
            if is_device_lost(error):
                self._end_with_lost_device(error)
            raise
        finally:
            self._slice_ended_at = time.monotonic()
        return self._is_unheard

    def _end_with_lost_device(self, error: Exception) -> None:
        """End the process; its parent starts a new one."""
        logger.critical("the device is lost: the worker ends itself", exc_info=error)
        reason = DeviceLost(
            f"the device failed ({type(error).__name__}: {error}); the worker was started anew"
        )

        def mark() -> None:
            with self._database.write() as session:
                workers.set_offline(session, self._worker_id, reason)

        write_last_words(mark)
        self._end_process(DEVICE_LOST)

    def _wake(self, job_id: str, priority: int) -> None:
        """Let the job's next turn come by its message; without a broker, by the next look."""
        if not self._broker.wake(job_id, priority):
            self._is_unheard = True

    def _run_slice(self, job_id: str) -> None:
        """Work on a job until it has nothing left, its slice is over, or the worker stops.

        While the queue is paused nothing is begun. The message is gone then, but the job is not: idle
        workers find it once the queue goes on.
        """
        self._is_shown_idle = False
        if time.monotonic() - self._slice_ended_at > IDLE_SECONDS:
            self._measured_to = time.monotonic()
        if self._pauses.hold():
            return
        with self._database.write() as session:
            row = session.get(JobRow, job_id)
            if row is None or row.status not in jobs.ACTIVE:
                return
            held = self._pauses.held_owners(session)
            if row.owner in held:
                return
            if row.kind == jobs.LOAD and not self._stop.is_set():
                if not model_loads.begin(session, row, self._worker_id):
                    return
                workers.set_busy(session, self._worker_id, row.id, row.model)
                chosen: str | None = job_id
            else:
                chosen = None if self._stop.is_set() else self._choice.begin(session, row, held)
        if chosen is None:
            self._wake(job_id, row.priority)
            return
        if row.kind == jobs.LOAD:
            try:
                self._model.load_as_asked(row)
            finally:
                self._set_idle()
            return
        try:
            work_remains = self._run(chosen)
        finally:
            self._set_idle()
        # a job that went first has a message of its own; the one that was put off has lost its
        if work_remains or chosen != job_id:
            self._wake(job_id, row.priority)

    def _set_idle(self) -> None:
        """A worker that seemed busy for good would keep its job from being woken."""
        if self._is_shown_idle:
            return
        self._database.insist(
            lambda session: workers.set_idle(session, self._worker_id, self._model.name or ""),
            give_up=self._stop.is_set,
        )

    def _run(self, job_id: str) -> bool:
        """Returns whether the job may have work left that nobody runs."""
        current = self._prepared(job_id)
        if current is not None:
            self._choice.chats.begins(is_chat=current.chat is not None)
        began = time.monotonic()
        while current is not None and not self._pauses.hold():
            with self._database.write() as session:
                # a pause or a deadline that came since is seen here at the latest
                if pause.holds(session) or job_control.fail_overdue(session, job_id):
                    return False
                if current.owner in self._pauses.held_owners(session):
                    return False
                leases = self._claim(session, current)
                changes = not leases and _has_other_lines(session, current)
                if not leases and not changes:
                    with suppress(NotFound):  # deleted since
                        jobs.end_if_done(session, job_id)
                    return False
            if changes:
                current = self._prepared(job_id)
                continue
            if not self._run_unit(current, leases):
                return False  # if it has work left, idle workers find it
            if self._stop.is_set() or self._is_over(current, time.monotonic() - began):
                return True
        return False

    def _prepared(self, job_id: str) -> Slice | None:
        """The job, ready to be run; None if it cannot be, which the job's log says."""
        try:
            return self._slices.prepare(job_id)
        except HeldElsewhere:
            logger.info("job %s is left to the worker that holds the model it is pinned to", job_id)
            self._choice.leave(job_id)
        except ServiceUnavailable as error:  # of the store that the dataset or a vector is read from
            self._pauses.outage.note(error)
        except ActographError as error:
            logger.warning("job %s cannot run: %s", job_id, error)
            with self._database.write() as session:
                jobs.fail(session, job_id, error)
        except DBAPIError:
            raise
        except Exception as error:
            reason = unforeseen(error, f"while job {job_id} was made ready")
            with self._database.write() as session:
                job_control.note_failed_preparation(session, job_id, reason)
            if is_device_lost(error):
                raise
        return None

    def _claim(self, session: Session, current: Slice) -> list[LeasedSample]:
        """The next unit: samples of the job, or of all chats that can be run with it."""
        count, seconds = current.units.size(), self._settings.lease_seconds
        if current.chat is None:
            lines = current.lines
            return samples.claim(
                session,
                current.job_id,
                worker_id=self._worker_id,
                count=count,
                lease_seconds=seconds,
                fits=None if lines is None else lambda stored: unit_key(stored) == lines,
            )
        return chat_batches.claim(
            session,
            current.model,
            current.chat,
            held=self._pauses.held_owners(session),
            worker_id=self._worker_id,
            count=count,
            lease_seconds=seconds,
        )

    def _is_over(self, current: Slice, seconds: float) -> bool:
        """Whether a slice that has lasted so long gives way: to its end, or to a waiting job."""
        if seconds > self._settings.slice_seconds:
            return True
        with self._database.read() as session:
            held = self._pauses.held_owners(session)
            return self._choice.is_over(session, current, seconds, held)

    def _run_unit(self, current: Slice, leases: Sequence[LeasedSample]) -> bool:
        """Returns whether to go on: not if the store is away, or the job has ended with this unit."""
        if current.refused is not None:
            refused = [Outcome(lease=lease, error=current.refused) for lease in leases]
            return self._store_unit(current, refused)
        keeper = LeaseKeeper(
            self._database,
            leases,
            self._stop,
            lease_seconds=self._settings.lease_seconds,
            stall_seconds=self._settings.stall_seconds,
            end_process=self._end_process,
        )
        with keeper:
            try:
                outcomes = current.units.run(leases, keeper)
            except Exception as error:
                if is_device_lost(error):
                    self._give_up(leases, error)
                raise
        self._models.batch_memory = current.units.batch_memory
        return self._store_unit(current, outcomes)

    def _give_up(self, leases: Sequence[LeasedSample], error: Exception) -> None:
        """Give the samples of a lost device back: each runs alone next, so that a bad one fails alone."""
        reason = DeviceLost(
            f"the device failed while it ran this sample alone ({type(error).__name__}: {error}); the "
            "worker's process was started anew each time"
        )

        def give_up() -> None:
            with self._database.write() as session:
                samples.give_up(session, leases, reason)

        write_last_words(give_up)

    def _store_unit(self, current: Slice, outcomes: Sequence[Outcome]) -> bool:
        """Commit a unit; returns as `_run_unit` does."""
        # a load is no part of what a sample takes
        before = max(self._measured_to, self._model.changed_at)
        self._measured_to = time.monotonic()
        # the slice of one chat goes on to the next
        idle_model = (self._model.name or "") if current.chat is None else None
        done = commit_each(
            self._database,
            outcomes,
            current.units.provenance,
            self._measured_to - before,
            worker_id=self._worker_id,
            idle_model=idle_model,
            give_up=self._stop.is_set,
        )
        is_end = done.is_end and current.chat is None
        self._is_shown_idle = is_end
        for outcome in done.lost:
            if outcome.recorded is not None:
                # what cannot be removed now is swept later: its sample has another session
                with suppress(ServiceUnavailable, OSError):
                    self._store.delete_prefix(session_prefix(outcome.recorded.session_id))
        if done.outage is None:
            if done.kept:
                self._pauses.outage.is_over()
            return not is_end
        self._pauses.outage.note(done.outage)
        return False


def _has_other_lines(session: Session, current: Slice) -> bool:
    """Whether a batch goes on with lines that cannot be run with those so far."""
    if current.lines is None or jobs.status_of(session, current.job_id) not in jobs.ACTIVE:
        return False
    return samples.next_input(session, current.job_id) is not None
