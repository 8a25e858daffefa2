"""Repair the index after crashes, and start the housekeeping.

Each API process and worker has a thread that asks regularly for due duties (`storage.upkeep.duties`). One
process at a time does them. So silent workers expire and jobs end without an API process, and a thousand
processes do no more work than one.
"""

import logging
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack

import sqlalchemy as sa

from actograph.contract.errors import ActographError
from actograph.settings import Settings
from storage.artifacts.store import ArtifactStore
from storage.index import disk_reserve
from storage.index.database import Database
from storage.jobs import control
from storage.queue import leases, workers
from storage.upkeep import duties
from storage.upkeep.housekeeping import Housekeeping

log = logging.getLogger(__name__)

#: rows of workers that ended are shown for a day
FORGET_WORKERS_SECONDS = 24 * 3600.0


class Healing:
    """A thread that asks for due duties and survives all errors."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        store: ArtifactStore,
        *,
        also: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            also: called every time, for duties of this process.
        """
        self._settings = settings
        self._database = database
        self._also = also
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="healing", daemon=True)
        self._housekeeping = Housekeeping(settings, database, store, self._stop)
        #: set after the first attempt, successful or not
        self.has_looked = threading.Event()
        self._failing = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
        self._housekeeping.join()

    def tick(self) -> bool:
        """Do a round if it is due. Returns whether it was.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: the database does not answer.
        """
        is_due = duties.take(self._database, "healing", self._settings.reconcile_seconds)
        if is_due:
            self.round()
        return is_due

    def round(self) -> None:
        """Take back what silent workers hold, fail overdue jobs, start the housekeeping. Errors as `tick`."""
        if self._database.reserve is not None:
            self._database.reserve.restore()
        with ExitStack() as steps:
            # all steps run, even if one fails
            for step in (self._log_unserved, self._housekeeping.tick, self._end_jobs, self._expire_workers):
                steps.callback(step)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._attempt()
            self.has_looked.set()
            # jittered, so that many processes do not ask at the same moment
            self._stop.wait(self._settings.reconcile_seconds * random.uniform(0.5, 1.0))

    def _attempt(self) -> None:
        """Do one attempt. An unavailable service is logged when it goes and when it is back."""
        try:
            self._also()
            # its few bytes of notes let housekeeping free space on a full disk
            with disk_reserve.freeing():
                has_healed = self.tick()
        except (ActographError, sa.exc.SQLAlchemyError, OSError) as error:
            if not self._failing:
                log.warning("healing waits for an unavailable service: %s", error)
            self._failing = True
        except Exception:
            log.exception("healing failed; it is tried again")
        else:
            if self._failing and not has_healed:
                return
            if self._failing:
                log.warning("healing resumes: all services answer again")
            self._failing = False

    def _log_unserved(self) -> None:
        with self._database.read() as session:
            unserved = workers.unserved_jobs(session, self._settings.lease_seconds)
        if unserved:
            with self._database.write() as session:
                workers.log_unserved(session, unserved)
            log.warning("%d job(s) wait for a worker of their model, %s first", len(unserved), unserved[0])

    def _expire_workers(self) -> None:
        with self._database.write() as session:
            lost = leases.reclaim(
                session,
                lease_seconds=self._settings.lease_seconds,
                pass_seconds=self._settings.reconcile_seconds,
            )
            expired = workers.expire(session, self._settings.lease_seconds)
            workers.forget(session, FORGET_WORKERS_SECONDS)
        if lost:
            log.warning("took back %d sample(s) of silent workers", lost)
        if expired:
            log.warning("%d worker(s) fell silent and count as offline", expired)

    def _end_jobs(self) -> None:
        with self._database.write() as session:
            for job_id in control.fail_overdue(session):
                log.warning("job %s has passed its deadline", job_id)
