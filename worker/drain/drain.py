"""The drain: load the model of the next job, and run samples as long as any wait.

Each claim decides anew which job is next (`storage.queue.claim`). A run goes on while samples of the loaded
model come (`worker.drain.scheduler`); another model, a suspect or a pause ends it. A wake-up starts all this,
and so does a thread of the idle worker after a hint (`worker.signals.hints`) and every few seconds.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from actograph.contract import chat_job
from actograph.contract.errors import ActographError, DeviceLost, NotFound, ServiceUnavailable, WorkerStalled
from actograph.settings import Settings
from storage.artifacts.store import ArtifactStore
from storage.index import events
from storage.index.database import Database, is_away
from storage.index.ids import slices
from storage.jobs import control, jobs
from storage.queue import claim, leases, model_loads, workers
from storage.queue.claim import Asking, Claim, HeldModel
from storage.sessions.writer import session_prefix
from storage.tables.models import JobRow
from worker.drain.commits import CommitResult, Commits
from worker.drain.held_leases import HeldLeases
from worker.drain.job_models import HeldElsewhere, JobModels, NotHeld
from worker.drain.model_holder import ModelHolder, memory_used
from worker.drain.open_jobs import OpenJobs
from worker.drain.pauses import Pauses
from worker.drain.scheduler import RunEnds, Scheduler, Work
from worker.engine.client import EngineClient
from worker.sample.open_job import OpenJob
from worker.sample.unforeseen import unforeseen
from worker.signals.hints import Hints
from worker.signals.stop_signal import StopSignal

logger = logging.getLogger(__name__)

#: jobs in whose logs one transaction writes
MOST_EVENTS = 500
#: pairs of a patch job that are claimed together
PAIRS_AT_ONCE = 4


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
        hints: Hints | None = None,
    ) -> None:
        """
        Args:
            may_load: names of the models that this worker may change to.
            hints: of changes in the index; None: it is polled.
        """
        self._settings = settings
        self._database = database
        self._store = store
        self._models = models
        self._worker_id = worker_id
        self._stop = stop
        self._hints = hints or Hints()
        self._pauses = Pauses(settings, database, store, worker_id)
        self._model = JobModels(models, database, worker_id)
        self._may_load = may_load
        self._open = OpenJobs(settings=settings, database=database, store=store, model=self._model)
        #: the model of the last claim, and since when
        self._held: HeldModel | None = None
        self._held_since = time.monotonic()
        #: claims of urgent chats in a row
        self._chats = 0
        #: True if the index may say that it holds samples, although it runs none: an answer was lost
        self._may_hold = False
        #: whether the last claim found work
        self._expects_work = False
        #: the job with which the index shows the worker as busy
        self._busy_with: str | None = None
        #: job id -> `time.monotonic` before which it is left to others
        self._left: dict[str, float] = {}
        #: ids of the jobs of the last run, without chats, of which there are too many for an event in each
        self._run_jobs: set[str] = set()
        #: of the last run
        self._held_leases: HeldLeases | None = None
        self._scheduler: Scheduler | None = None
        #: held while a job runs: wake-ups and looks come in their own threads
        self._turn = threading.Lock()

    def check_leases(self, session: Session) -> None:
        """Ask which of the running samples are still the worker's own."""
        held_leases = self._held_leases
        if held_leases is not None:
            held_leases.check(session)

    def numbers(self) -> dict[str, int]:
        """Sessions and bytes that wait for the store, for the heartbeat."""
        scheduler = self._scheduler
        waits = self._pauses.outage.reason is not None or (
            scheduler is not None and scheduler.waits_for_store
        )
        return {
            "sessions_to_store": 0 if scheduler is None else scheduler.sessions_to_store,
            "upload_bytes": self._store.staged_bytes(),
            "waits_for_store": int(waits),
        }

    def load(self, model: str) -> None:
        """Load a model before the first job asks for it. Raises ModelRefused."""
        self._models.engine_for(model)

    def close(self) -> None:
        """Free what outlives the runs; nothing may run any more."""
        self._open.close()

    def serve(self) -> None:
        """Answer a wake-up: run the jobs that the index has for this worker. Waits for a run in progress."""
        with self._turn:
            self._work()

    def look(self, most: int | None = None) -> bool:
        """Run the jobs that the index has for this worker, if it is idle. Returns True if anything was done.

        Args:
            most: end after so many claims and loads; then nothing joins a run.
        """
        if not self._turn.acquire(blocking=False):
            return False
        try:
            return self._work(most)
        finally:
            self._turn.release()

    def _work(self, most: int | None = None) -> bool:
        """Run samples until the index has no work for this worker. Returns True if anything was done."""
        count = 0
        is_shown = True
        try:
            with self._failures():
                while count != most and not self._stop.is_set() and not self._pauses.hold():
                    found = self._claim_alone()
                    if found is None:
                        break
                    is_shown = False
                    count += self._take(found, joins=most is None)
        finally:
            if not is_shown:
                self._set_idle()
        return count > 0

    def _claim_alone(self) -> Claim | None:
        """Claim work while nothing runs."""
        if self._may_hold:
            with self._database.write() as session:
                leases.give_back_all(session, self._worker_id)
        self._may_hold = True
        found = self._claim(lambda job: _most(job, self._slots) if self._open.is_open(job) else 0)
        self._may_hold = found is not None and bool(found.samples)
        return found

    def _claim(
        self, room: Callable[[JobRow], int], *, joins: bool = False, chats_only: bool = False
    ) -> Claim | None:
        held = self._model.held
        if held != self._held:
            self._held, self._held_since = held, time.monotonic()
        moment = time.monotonic()
        self._left = {job_id: until for job_id, until in self._left.items() if until > moment}

        def asking(owners: Sequence[str]) -> Asking:
            return Asking(
                worker_id=self._worker_id,
                held=held,
                may_load=self._may_load,
                had_turn=moment - self._held_since >= self._settings.model_hold_seconds,
                chats=self._chats,
                busy_with=self._busy_with,
                owners=owners,
                without=self._left.keys() | self._filling,
                joins=joins,
                chats_only=chats_only,
            )

        if joins and not self._expects_work:  # most of these looks find nothing, and need no turn to write
            with self._database.read() as session:
                if claim.choose(session, asking(())) is None:
                    return None
        if joins and self._pauses.hold():
            raise RunEnds
        found = claim.claim(self._database, asking(self._pauses.held_owners()), room)
        self._expects_work = found is not None
        if found is not None and (found.samples or not joins):
            self._busy_with = found.job.id  # a claim that joins a run and leases nothing shows nothing
        return found

    def _take(self, found: Claim, *, joins: bool) -> bool:
        """Run samples, make their job ready, or load a model. Returns whether that has worked.

        Args:
            joins: whether further samples may join the run.
        """
        job = found.job
        has_progress = False
        try:
            if found.samples:
                self._run(found, joins=joins)
                has_progress = True
            elif job.kind == jobs.LOAD:
                has_progress = self._load(job)
            else:
                has_progress = self._prepare(job.id)
                return False
        finally:
            if not has_progress:  # other jobs have their turn meanwhile
                self._leave(job.id, self._settings.idle_poll_seconds)
        return has_progress

    @property
    def _filling(self) -> set[str]:
        """Jobs whose pairs fill the run for a while; see `Scheduler.filling`."""
        return set() if self._scheduler is None else self._scheduler.filling

    @property
    def _slots(self) -> int:
        engine = self._models.engine
        return 1 if engine is None else engine.slots

    def _work_of(self, found: Claim) -> Work:
        samples = [(self._open.of(found.jobs[one.job_id], one), one) for one in found.samples]
        self._run_jobs.update(job.id for job in found.jobs.values() if job.kind != chat_job.CHAT)
        return Work(samples, urgent=found.job.is_urgent_chat)

    def _count_chats(self, found: Claim) -> None:
        self._chats += 1 if self._slots > 1 else claim.CHATS_IN_A_ROW
        self._chats *= found.job.is_urgent_chat

    def _more(self, run: OpenJob, room: int, chats_only: bool) -> Work | None:
        """Claim samples that join the run of a job, see `scheduler.More`."""
        while not self._stop.is_set():
            try:
                found = self._claim(
                    lambda job: _most(job, room) if self._open.is_open(job, run) else 0,
                    joins=True,
                    chats_only=chats_only,
                )
            except DBAPIError as error:
                if not is_away(error):
                    raise
                # its answer may be lost; what it leased is given back once nothing runs
                logger.warning("the database is unavailable; nothing joins the run: %s", error.orig)
                raise RunEnds from None
            if found is None:
                return None
            if found.samples:
                if not chats_only:
                    self._count_chats(found)
                return self._work_of(found)
            if found.job.kind == jobs.LOAD or self._open.is_open(found.job):
                raise RunEnds  # a load, suspects and another engine wait until nothing runs
            try:
                if not self._prepare(found.job.id, load=False):
                    self._leave(found.job.id, self._settings.idle_poll_seconds)
            except NotHeld:
                raise RunEnds from None
        raise RunEnds

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
        """Log that the database is away."""
        try:
            yield
        except DBAPIError as error:
            if not is_away(error):
                raise
            logger.warning("the database is unavailable; what runs stops here: %s", error.orig)

    def _set_idle(self) -> None:
        """Show the worker as idle."""
        self._busy_with = None
        self._database.insist(
            lambda session: workers.set_idle(session, self._worker_id, self._model.name or ""),
            give_up=self._stop.is_set,
        )

    def _prepare(self, job_id: str, *, load: bool = True) -> bool:
        """Open a job. Returns False if it is left for a while; the log has the reason.

        Raises:
            NotHeld: it needs a model, and may not `load` it.
        """
        try:
            self._open.open(job_id, load=load)
            return True
        except NotHeld:
            raise
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
        except Exception as error:  # noqa: BLE001 (the job ends after a few)
            reason = unforeseen(error, f"while job {job_id} was prepared")
            with self._database.write() as session:
                control.note_failed_preparation(session, job_id, reason)
        return False

    def _run(self, found: Claim, *, joins: bool) -> None:
        """Run claimed samples, and what joins them."""
        engine = self._models.engine
        assert engine is not None
        self._count_chats(found)
        held_leases = self._held_leases = HeldLeases(
            self._database,
            self._worker_id,
            self._stop,
            stall_seconds=self._settings.stall_seconds,
            stalled=engine.kill,
            hints=self._hints,
            grace_seconds=self._settings.stop_grace_seconds,
        )
        commits = Commits(
            self._database, self._worker_id, stored=self._note_stored, give_up=self._stop.is_set
        )
        self._run_jobs.clear()
        first = self._work_of(found)
        more = partial(self._more, first.samples[0][0]) if joins else None
        scheduler = self._scheduler = Scheduler(
            first,
            more,
            slots=self._slots,
            held_leases=held_leases,
            commits=commits,
            store=self._store,
            outage=self._pauses.outage,
            hints=self._hints,
        )
        self._may_hold = True
        try:
            with commits, held_leases:
                scheduler.run()
        except DBAPIError:
            raise
        except (DeviceLost, WorkerStalled) as error:
            logger.critical("%s", error)
            self._give_back(held_leases, error)
            self._models.lost()  # the next claim loads the model again
        except Exception as error:
            self._give_back(held_leases, unforeseen(error, "while the engine ran this sample and others"))
            self._note_memory(engine)
            raise
        else:
            self._note_memory(engine)
        finally:
            self._held_leases = self._scheduler = None

    def _note_memory(self, engine: EngineClient) -> None:
        """Log the memory of a run in its jobs, some of which have ended."""
        data = {"worker_id": self._worker_id, "memory": memory_used(engine, "run")}

        def note(session: Session, some: Sequence[str]) -> None:
            for row in jobs.lock_all(session, some):
                events.append(session, row.id, "run.ended", data)

        for some in slices(sorted(self._run_jobs), MOST_EVENTS) if data["memory"] else ():
            self._database.insist(partial(note, some=some), give_up=self._stop.is_set)

    def _give_back(self, held_leases: HeldLeases, reason: ActographError) -> None:
        """Give back the samples that ran, which counts a loss of each."""

        def give_back(session: Session) -> None:
            leases.give_back(session, held_leases.held, reason)

        self._database.insist(give_back, give_up=self._stop.is_set)

    def _note_stored(self, done: CommitResult) -> None:
        """Follow a commit: its samples are no longer held, and files without a session go."""
        assert self._held_leases is not None
        self._held_leases.release([outcome.lease for outcome in done.outcomes])
        # the reaper may have been here before the last file was stored
        with suppress(ServiceUnavailable, OSError):
            self._store.delete_many({session_prefix(one): None for one in done.lost_sessions})
        if done.outage is not None:
            self._pauses.outage.note(done.outage)
        elif done.is_any:
            self._pauses.outage.is_over()


def _most(job: JobRow, room: int) -> int:
    """Samples to claim of a job. A pair has many requests, so few pairs fill the slots."""
    return min(room, PAIRS_AT_ONCE) if job.kind == "patch" else room
