"""Long duties of the deployment: expiry, removal of old and deleted data, and leftovers of killed writers.

Healing does not wait for them: they run in a thread, one process of the deployment at a time.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext

import sqlalchemy as sa

from actograph.contract.errors import ActographError
from actograph.settings import Settings
from storage.artifacts.store import ArtifactStore
from storage.files import files
from storage.index import disk_reserve
from storage.index.database import Database
from storage.jobs import control
from storage.sessions import changes
from storage.upkeep import duties, reaper

log = logging.getLogger(__name__)

#: age of leftovers that certainly have no writer any more
STAGING_SECONDS = 3600.0
LOOK_FOR_STAGING_EVERY_SECONDS = 24 * 3600.0
#: a search reads the jobs that stay too
LOOK_FOR_OLD_EVERY_SECONDS = 60.0
#: objects that are deleted between two checks of the stop event
BATCH = 50


class Threads:
    """Runs each named duty in a thread of its own, at most one of a name at a time."""

    def __init__(self, database: Database | None = None) -> None:
        """With `database`, at most one of a name runs in the whole deployment."""
        self._database = database
        self._threads: dict[str, threading.Thread] = {}

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Start a duty, unless it is running."""
        running = self._threads.get(name)
        if running is None or not running.is_alive():
            self._threads[name] = threading.Thread(
                target=self._guarded, args=(name, work), name=name, daemon=True
            )
            self._threads[name].start()

    def join(self, timeout: float = 10) -> None:
        """Wait for the running threads."""
        for thread in self._threads.values():
            thread.join(timeout)

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        try:
            with self._database.alone(f"duty-{name}") if self._database else nullcontext(True) as may_run:
                if may_run:
                    work()
        except (ActographError, sa.exc.SQLAlchemyError, OSError) as error:
            log.warning("the %s stopped early: %s", name, error)
        except Exception:
            log.exception("the %s failed; it is tried again", name)


class Housekeeping:
    """`tick` starts due duties and returns at once; setting `stop` ends them."""

    def __init__(
        self, settings: Settings, database: Database, store: ArtifactStore, stop: threading.Event
    ) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self._stop = stop
        self._threads = Threads(database)

    def tick(self) -> None:
        self._threads.start("housekeeping", self._work)

    def join(self, timeout: float = 10) -> None:
        """Wait for running duties; they end soon once the stop event is set."""
        self._threads.join(timeout)

    def _work(self) -> None:
        with disk_reserve.freeing():
            self._expire()
            if duties.take(self._database, "old jobs", LOOK_FOR_OLD_EVERY_SECONDS):
                self._delete_old("chats", self._settings.chat_retention_seconds)
                self._delete_old("jobs", self._settings.job_retention_seconds)
            reaped = reaper.reap(self._database, self._store, self._stop)
            if reaped.count:
                log.info("removed %d deleted object(s), %d bytes", reaped.count, reaped.bytes)
            # lists the whole store
            if duties.take(self._database, "leftovers", LOOK_FOR_STAGING_EVERY_SECONDS):
                removed = self._store.sweep_staging(STAGING_SECONDS)
                if removed:
                    log.info("removed %d leftover(s) of killed writers", removed)

    def _expire(self) -> None:
        total = changes.Count()
        if expired := files.expire(self._database):
            log.info("deleted %d expired file(s)", expired)
        while not self._stop.is_set():
            gone = changes.expire(self._database, limit=BATCH)
            if not gone.sessions:
                break
            total = total + gone
        if total.sessions:
            log.info("deleted %d expired session(s), %d bytes", total.sessions, total.bytes)

    def _delete_old(self, kind: control.Kind, seconds: int) -> None:
        """Delete jobs that ended so long ago; 0 keeps them."""
        total = 0
        while seconds and not self._stop.is_set():
            deleted = control.delete_old(self._database, kind, seconds, limit=BATCH)
            if not deleted:
                break
            total += deleted
        if total:
            log.info("removed %d ended %s", total, kind)
