"""Repair the index after crashes, and remove what is past its time.

A process of its own does so in rounds (`storage/upkeep/__main__.py`). If several run, each round is one's.
"""

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import get_args

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import ActographError
from actograph.settings import Settings
from storage.artifacts.store import ArtifactStore
from storage.files import files
from storage.index import disk_reserve, tallies
from storage.index.database import Database, changed, now
from storage.index.ids import slices
from storage.index.upsert import Upsert
from storage.jobs import control
from storage.queue import leases, workers
from storage.sessions import changes
from storage.tables.models import StateRow
from storage.upkeep import reaper

log = logging.getLogger(__name__)

#: rows of workers that ended are shown for a day
FORGET_WORKERS_SECONDS = 24 * 3600.0
#: a round removes data for about so long; the next one continues
REMOVE_SECONDS = 5.0
#: a search reads the jobs that stay too
LOOK_FOR_OLD_EVERY_SECONDS = 60.0
#: a search lists the whole store
LOOK_FOR_STAGING_EVERY_SECONDS = 24 * 3600.0
#: age of leftovers that certainly have no writer any more
STAGING_SECONDS = 3600.0
#: name of the row with the time of the last round
TURN = "healing"
_add = Upsert(StateRow, "name")


class Reconciler:
    """Rounds of upkeep."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        store: ArtifactStore,
        stop: threading.Event | None = None,
    ) -> None:
        """`stop`: ends the rounds, and a long one early."""
        self._settings = settings
        self._database = database
        self._store = store
        self._stop = stop or threading.Event()
        self._failing = False

    def run(self) -> None:
        """Do rounds until the stop. No error ends them."""
        while not self._stop.is_set():
            self._attempt()
            # jittered, so that several processes do not ask at the same moment
            self._stop.wait(self._settings.reconcile_seconds * random.uniform(0.5, 1.0))

    def round(self) -> None:
        """Take back what silent workers hold, fail overdue jobs, remove old data.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: the database does not answer.
            ServiceUnavailable, OSError: the store does not answer.
        """
        # its few bytes of notes let it free space on a full disk
        with disk_reserve.freeing(), ExitStack() as steps:
            if self._database.reserve is not None:
                self._database.reserve.restore()
            # the last step first; all of them run, even if one fails
            for step in (self._remove, self._log_unserved, self._end_jobs, self._expire_workers):
                steps.callback(step)

    def _attempt(self) -> None:
        """Do one attempt. An unavailable service is logged when it goes and when it is back."""
        try:
            with disk_reserve.freeing():
                is_due = take_turn(self._database, TURN, self._settings.reconcile_seconds)
            if is_due:
                self.round()
        except (ActographError, sa.exc.SQLAlchemyError, OSError) as error:
            if not self._failing:
                log.warning("healing waits for an unavailable service: %s", error)
            self._failing = True
        except Exception:
            log.exception("healing failed; it is tried again")
        else:
            if self._failing and is_due:
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
            # in this order, so that one that was suspended for days has a pass to come back
            workers.forget(session, FORGET_WORKERS_SECONDS)
            expired = workers.expire(session, self._settings.lease_seconds)
        if lost:
            log.warning("took back %d sample(s) of silent workers", lost)
        if expired:
            log.warning("%d worker(s) fell silent and count as offline", expired)

    def _end_jobs(self) -> None:
        """End jobs whose workers died after their last commit, and fail overdue ones, in short transactions.

        A paused queue may have many of them.
        """
        with self._database.read() as session:
            left = tallies.jobs_with_any(session)
        for batch in slices(left, control.AT_ONCE):
            with self._database.write() as session:
                control.settle(session, batch)
        while not self._stop.is_set():
            with self._database.write() as session:
                failed = control.fail_overdue(session)
            for job_id in failed:
                log.warning("job %s has passed its deadline", job_id)
            if len(failed) < control.AT_ONCE:
                return

    def _remove(self) -> None:
        """Remove expired, old and deleted data, and leftovers of killed writers."""
        database, settings = self._database, self._settings
        deadline = time.monotonic() + REMOVE_SECONDS
        if expired := files.expire(database):
            log.info("deleted %d expired file(s)", expired)
        self._repeat("expired sessions", lambda: changes.expire(database).sessions, deadline)
        if take_turn(database, "old jobs", LOOK_FOR_OLD_EVERY_SECONDS):
            for kind in get_args(control.Kind):
                chats = kind == "chats"
                seconds = settings.chat_retention_seconds if chats else settings.job_retention_seconds
                if seconds:
                    delete = partial(control.delete_old, database, kind, seconds, limit=reaper.SLICE)
                    self._repeat(f"ended {kind}", delete, deadline)
        reaped = reaper.reap(database, self._store, self._stop, deadline=deadline)
        if reaped.count:
            log.info("removed %d deleted object(s), %d bytes", reaped.count, reaped.bytes)
        if take_turn(database, "leftovers", LOOK_FOR_STAGING_EVERY_SECONDS):
            removed = self._store.sweep_staging(STAGING_SECONDS)
            if removed:
                log.info("removed %d leftover(s) of killed writers", removed)

    def _repeat(self, objects: str, delete: Callable[[], int], deadline: float) -> None:
        """Delete batches of objects until none is left, or until the deadline."""
        total = 0
        while not self._stop.is_set() and time.monotonic() < deadline and (count := delete()):
            total += count
        if total:
            log.info("deleted %d %s", total, objects)


def age(session: Session) -> float:
    """Seconds since the last round began; infinite if there was none."""
    begun_at = session.scalar(sa.select(StateRow.at).where(StateRow.name == TURN))
    return math.inf if begun_at is None else max(0.0, now(session) - begun_at)


def take_turn(database: Database, name: str, every_seconds: float) -> bool:
    """True if this process should do the duty now. The next turn is due after `every_seconds`.

    Most calls write nothing. If a process dies in its turn, another one takes the next turn.
    """
    with database.read() as session:
        begun_at = session.scalar(sa.select(StateRow.at).where(StateRow.name == name))
        if begun_at is not None and begun_at > now(session) - every_seconds:
            return False
    with database.write() as session:
        moment = now(session)
        _add(session, [{"name": name, "at": 0.0}])
        due = sa.update(StateRow).where(StateRow.name == name, StateRow.at <= moment - every_seconds)
        return changed(session.execute(due.values(at=moment))) > 0
