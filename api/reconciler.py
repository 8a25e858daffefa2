"""Puts right what a crash left behind: lost messages, dead workers, jobs that nobody ends.

The database says what is to be done; this thread compares it with the broker every few
seconds. A flushed Redis therefore costs seconds and no work.
"""

import logging
import threading

import sqlalchemy as sa

from actograph.contract.errors import ActographError, NotFound
from api.dependencies import Services
from api.housekeeping import Housekeeping
from api.key_ring import KeyRing
from api.unserved_jobs import UnservedJobs
from api.waking import wake_jobs
from storage import bulk_insert, job_control, job_queue, jobs, queue_pause, quotas, workers
from storage.queue_state import disk_pause

log = logging.getLogger(__name__)

#: rows of workers that ended are shown for a day
FORGET_WORKERS_SECONDS = 24 * 3600.0


class Reconciler:
    """A thread that runs `reconcile_once` until it is stopped, whatever goes wrong."""

    def __init__(self, services: Services, ring: KeyRing | None = None) -> None:
        """`ring`: this process's, whose uses of keys are written down."""
        self._services = services
        self._ring = ring
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)
        self._housekeeping = Housekeeping(services, self._stop)
        #: one round was made, well or not
        self.has_looked = threading.Event()
        self._failing = False
        self._paused = False
        self._unserved = UnservedJobs(services, patience_seconds=services.settings.lease_seconds)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
        self._housekeeping.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._attempt()
            self.has_looked.set()
            self._stop.wait(self._services.settings.reconcile_seconds)

    def _attempt(self) -> None:
        """One round; a service that is away is logged once, when it goes and when it is back."""
        try:
            if self._ring is not None:
                self._ring.touch(self._services.database)
            # of several API processes one does it for all
            with self._services.database.alone("reconciler") as is_alone:
                if is_alone:
                    self.reconcile_once()
        except (ActographError, sa.exc.SQLAlchemyError, OSError) as error:
            if not self._failing:
                log.warning("reconciling waits for a service that is away: %s", error)
            self._failing = True
        except Exception:
            log.exception("reconciling failed; it is tried again")
        else:
            if self._failing:
                log.warning("reconciling goes on: all services answer again")
            self._failing = False

    def reconcile_once(self) -> list[str]:
        """One round of everything; returns the jobs that were woken.

        Raises:
            ServiceUnavailable: the broker does not answer.
            sqlalchemy.exc.SQLAlchemyError: the database does not.
        """
        self._expire_workers()
        self._end_jobs()
        self._housekeeping.tick()
        woken = [] if self._is_paused() else wake_jobs(self._services)
        if woken:
            log.info("woke %d job(s), %s first", len(woken), woken[0])
        if told := self._unserved.tell():
            log.warning("%d job(s) wait for a worker of their model, %s first", len(told), told[0])
        return woken

    def _expire_workers(self) -> None:
        with self._services.database.write() as session:
            expired = workers.expire(session, self._services.settings.lease_seconds)
            workers.forget(session, FORGET_WORKERS_SECONDS)
        if expired:
            log.warning("%d worker(s) fell silent and count as offline", expired)

    def _end_jobs(self) -> None:
        with self._services.database.write() as session:
            for job_id in job_control.fail_overdue(session):
                log.warning("job %s has passed its deadline", job_id)
        if abandoned := bulk_insert.discard_abandoned(self._services.database):
            log.warning("removed %d job(s) whose submission broke off", abandoned)
        with self._services.database.read() as session:
            candidates = job_queue.unended(session)
        for job_id in candidates:
            try:
                with self._services.database.write() as session:
                    jobs.end_if_done(session, job_id)
            except NotFound:
                continue  # deleted since

    def _is_paused(self) -> bool:
        """Whether nothing is to be begun; a full store is said when it begins and when it ends."""
        services = self._services
        with services.database.read() as session:
            is_held = queue_pause.holds(session)
            full = quotas.read(session, services.settings).pause()
        reason = disk_pause(services.store, services.settings.disk_floor_bytes) or full
        if reason is not None and not self._paused:
            log.warning("the queue is paused: %s", reason)
        elif reason is None and self._paused:
            log.warning("the queue goes on: there is space in the store again")
        self._paused = reason is not None
        return self._paused or is_held
