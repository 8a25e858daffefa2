"""The drain: claim samples, run them as one batch, commit them, claim the next.

Each claim decides anew which job is next (`storage.queue.claim`). Jobs stay open from one batch to the next,
so taking turns costs little. A wake-up starts this, and so does a thread of the idle worker every few
seconds; the wake-up only makes it sooner.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from sqlalchemy.exc import DBAPIError

from actograph.contract.chat_job import CHAT
from actograph.contract.errors import ActographError, DeviceLost, NotFound, ServiceUnavailable
from actograph.settings import Settings
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database, is_away
from storage.jobs import control, jobs
from storage.queue import claim, leases, model_loads, workers
from storage.queue.claim import Asking, Claim, Held
from storage.queue.leases import LeasedSample
from storage.sessions.writer import session_prefix
from storage.tables.models import JobRow
from worker.drain.commit import store
from worker.drain.job_models import HeldElsewhere, JobModels
from worker.drain.lease import LeaseKeeper
from worker.drain.model_holder import ModelHolder
from worker.drain.open_jobs import OpenJobs
from worker.drain.pauses import Pauses
from worker.engine.model.device_errors import is_device_lost
from worker.sample.batch import BatchRunner
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
        self._models = models
        self._worker_id = worker_id
        self._stop = stop
        self._pauses = Pauses(settings, database, store)
        self._model = JobModels(models, database, worker_id)
        self._may_load = may_load
        self._open = OpenJobs(settings=settings, database=database, store=store, model=self._model)
        #: the model of the last claim, and since when
        self._held: Held | None = None
        self._held_since = time.monotonic()
        #: batches of urgent chats in a row
        self._chats = 0
        #: True if the index may say that it holds samples, although it runs none: an answer was lost
        self._may_hold = False
        #: job id -> `time.monotonic` before which it is left to others
        self._left: dict[str, float] = {}
        #: of the last batch
        self._keeper: LeaseKeeper | None = None
        #: held while a job runs: wake-ups and looks come in their own threads
        self._turn = threading.Lock()
        #: True if the last commit has shown the worker as idle
        self._is_shown_idle = False
        #: end of the time that was counted to batches
        self._measured_to = 0.0

    @property
    def is_stalled(self) -> bool:
        """Whether the current batch makes no progress."""
        return self._keeper is not None and self._keeper.is_stalled

    def load(self, model: str) -> None:
        """Load a model before the first job asks for it. Raises ModelRefused."""
        self._models.engine_for(model)

    def serve(self) -> None:
        """Answer a wake-up: run the jobs that the index has for this worker. Waits for a run in progress."""
        with self._turn:
            self._work()

    def look(self, most: int | None = None) -> bool:
        """Run the jobs that the index has for this worker, if it is idle. Returns True if any was run.

        Args:
            most: end after so many batches.
        """
        if not self._turn.acquire(blocking=False):
            return False
        try:
            return self._work(most)
        finally:
            self._turn.release()

    def _work(self, most: int | None = None) -> bool:
        """Run batches until the index has no work for this worker. Returns True if any was run."""
        count = 0
        self._is_shown_idle = True
        self._measured_to = time.monotonic()
        try:
            with self._failures():
                while count != most and not self._stop.is_set() and not self._pauses.hold():
                    found = self._claim()
                    if found is None:
                        break
                    count += self._run(found)
        finally:
            self._set_idle()
        return count > 0

    def _claim(self) -> Claim | None:
        held = self._model.held
        if held != self._held:
            self._held, self._held_since = held, time.monotonic()
        moment = time.monotonic()
        self._left = {job_id: until for job_id, until in self._left.items() if until > moment}

        if self._may_hold:
            with self._database.write() as session:
                leases.give_back_all(session, self._worker_id)
        self._may_hold = True
        with self._database.write() as session:
            asking = Asking(
                worker_id=self._worker_id,
                held=held,
                may_load=self._may_load,
                had_turn=moment - self._held_since >= self._settings.model_hold_seconds,
                chats=self._chats,
                owners=self._pauses.held_owners(session),
                without=self._left.keys(),
            )
            found = claim.claim(session, asking, self._open.room)
        self._may_hold = found is not None and bool(found.samples)
        return found

    def _run(self, found: Claim) -> bool:
        """Run a batch, or make its job ready. Returns whether a batch was run or a model loaded."""
        self._is_shown_idle = False
        job = found.job
        has_progress = False
        try:
            if found.samples:
                is_urgent_chat = job.kind == CHAT and job.priority == 0
                several = self._open.room(found.key) > 1
                self._chats += 1 if several else claim.CHATS_IN_A_ROW
                self._chats *= is_urgent_chat
                self._run_batch(self._open.get(found.key), found.samples)
                self._may_hold = False
                has_progress = True
            elif job.kind == jobs.LOAD:
                has_progress = self._load(job)
            else:
                has_progress = self._prepare(job.id)
                self._measured_to = time.monotonic()  # no sample caused the load
                return False
        finally:
            if not has_progress:  # other jobs have their turn meanwhile
                self._leave(job.id, self._settings.idle_poll_seconds)
        return has_progress

    def _leave(self, job_id: str, seconds: float) -> None:
        """Skip this job for so many seconds."""
        self._left[job_id] = max(self._left.get(job_id, 0.0), time.monotonic() + seconds)

    def _load(self, job: JobRow) -> bool:
        with self._database.write() as session:
            if not model_loads.begin(session, job, self._worker_id):
                return False
        self._model.load_as_asked(job)
        return True

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

    def _set_idle(self) -> None:
        """Show the worker as idle after its last batch."""
        if self._is_shown_idle:
            return
        self._database.insist(
            lambda session: workers.set_idle(session, self._worker_id, self._model.name or ""),
            give_up=self._stop.is_set,
        )

    def _prepare(self, job_id: str) -> bool:
        """Open a job. Returns False if it is left for a while; the log has the reason."""
        try:
            self._open.open(job_id)
            return True
        except NotFound:  # deleted since
            pass
        except HeldElsewhere:
            logger.info("job %s waits for the worker that holds its pinned model", job_id)
            self._leave(job_id, self._settings.lease_seconds)
        except ServiceUnavailable as error:  # the store of the dataset or of a vector
            self._pauses.outage.note(error)
        except ActographError as error:
            logger.warning("job %s cannot run: %s", job_id, error)
            with self._database.write() as session:
                jobs.fail(session, job_id, error)
            return True  # it has ended, and may be retried at once
        except DBAPIError:
            raise
        except Exception as error:
            reason = unforeseen(error, f"while job {job_id} was prepared")
            with self._database.write() as session:
                control.note_failed_preparation(session, job_id, reason)
            if is_device_lost(error):
                raise
        return False

    def _run_batch(self, current: BatchRunner, claimed: Sequence[LeasedSample]) -> None:
        """Run and commit a batch."""
        if current.job.refused is not None:
            refused = [Outcome(lease=lease, error=current.job.refused) for lease in claimed]
            self._store_batch(current, refused)
            return
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
                outcomes = current.run(claimed, keeper)
            except Exception as error:
                if is_device_lost(error):
                    self._give_up(claimed, error)
                else:
                    reason = unforeseen(error, "while a batch was run")
                    with self._database.write() as session:
                        leases.give_back(session, claimed, reason)
                raise
        self._models.batch_memory = current.memory
        self._store_batch(current, outcomes)

    def _give_up(self, claimed: Sequence[LeasedSample], error: Exception) -> None:
        """Give back the samples of a lost device, which counts a loss of each."""
        reason = DeviceLost(f"the device failed ({type(error).__name__}: {error}); the worker was restarted")

        def give_up() -> None:
            with self._database.write() as session:
                leases.give_back(session, claimed, reason)

        last_write(give_up)

    def _store_batch(self, current: BatchRunner, outcomes: Sequence[Outcome]) -> None:
        before, self._measured_to = self._measured_to, time.monotonic()
        done = store(
            self._database,
            outcomes,
            current.job.provenance,
            self._measured_to - before,
            worker_id=self._worker_id,
            idle_model=self._model.name or "",
            give_up=self._stop.is_set,
        )
        self._is_shown_idle = done.is_end
        # the reaper may have been here before the last file was stored
        with suppress(OSError):
            self._store.delete_many({session_prefix(one): None for one in done.lost_sessions})
        if done.outage is not None:
            self._pauses.outage.note(done.outage)
        elif done.is_any:
            self._pauses.outage.is_over()
