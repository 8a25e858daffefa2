"""Long duties of the deployment: expiry, deletions, retention, and leftovers of killed writers.

Healing does not wait for them: each runs in a thread of its own, in one process of the deployment at a time.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import sqlalchemy as sa

from actograph.contract.errors import ActographError
from actograph.settings import Settings
from storage.artifacts.store import ArtifactStore
from storage.files import files
from storage.index import deletions, disk_reserve
from storage.index.database import Database
from storage.jobs import retention
from storage.sessions import changes
from storage.upkeep import duties
from storage.upkeep.deletion_drain import drain_deletions
from storage.upkeep.sweep import sweep_sessions

log = logging.getLogger(__name__)

#: age of leftovers that certainly have no writer any more
STAGING_SECONDS = 3600.0
SWEEP_EVERY_SECONDS = 24 * 3600.0
FORGET_DELETIONS_EVERY_SECONDS = 600.0
#: sessions that are deleted between two checks of the stop event
EXPIRE_BATCH = 50
#: largest share of the time for searches of old jobs
SEARCH_SHARE = 0.02


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
                    # these write and free nothing
                    uses_reserve = name != "batches"
                    with disk_reserve.freeing() if uses_reserve else nullcontext():
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
        #: when old chats, and other jobs, are looked for again
        self._old_due_at = {"chats": float("-inf"), "jobs": float("-inf")}

    def tick(self) -> None:
        """Raises sqlalchemy.exc.SQLAlchemyError if the database does not answer."""
        with self._database.read() as session:
            due = changes.expired(session).sessions or files.is_any_expired(session)
            has_deletions = deletions.is_any_due(session)
        if due:
            self._threads.start("expiry", self._expire)
        if has_deletions:
            self._threads.start("deletions", self._delete)
        self._start_if_old("chats", self._settings.chat_retention_seconds)
        self._start_if_old("jobs", self._settings.job_retention_seconds)
        if duties.take(self._database, "forget deletions", FORGET_DELETIONS_EVERY_SECONDS):
            with self._database.write() as session:
                deletions.forget(session)
        # lists the whole store
        if duties.take(self._database, "sweep", SWEEP_EVERY_SECONDS):
            self._threads.start("sweeper", self._sweep)

    def join(self, timeout: float = 10) -> None:
        """Wait for running duties; they end soon once the stop event is set."""
        self._threads.join(timeout)

    def _expire(self) -> None:
        total = changes.Count()
        if expired := files.expire(self._database):
            log.info("deleted %d expired file(s)", expired)
        while not self._stop.is_set():
            gone = changes.expire(self._database, limit=EXPIRE_BATCH)
            if not gone.sessions:
                break
            total = total + gone
        if total.sessions:
            log.info("deleted %d expired session(s), %d bytes", total.sessions, total.bytes)

    def _delete(self) -> None:
        gone = drain_deletions(self._database, self._store, self._stop)
        if gone.count:
            log.info("removed the files of %d deleted object(s), %d bytes", gone.count, gone.bytes)

    def _start_if_old(self, kind: retention.Kind, seconds: int) -> None:
        """Remove jobs that ended so long ago; 0 keeps them."""
        if seconds and time.monotonic() >= self._old_due_at[kind]:
            self._threads.start(kind, partial(self._remove_old, kind, seconds))

    def _remove_old(self, kind: retention.Kind, seconds: int) -> None:
        total = 0
        while not self._stop.is_set():
            began = time.monotonic()
            with self._database.read() as session:
                old = retention.old(session, kind, seconds, limit=EXPIRE_BATCH)
            if not old:
                looked = time.monotonic()
                self._old_due_at[kind] = looked + (looked - began) / SEARCH_SHARE
                break
            with self._database.write() as session:
                retention.remove(session, kind, old)
            total += len(old)
        if total:
            log.info("removed %d ended %s", total, kind)

    def _sweep(self) -> None:
        removed = self._store.sweep_staging(STAGING_SECONDS)
        if removed:
            log.info("removed %d leftover(s) of killed writers", removed)
        found = sweep_sessions(self._database, self._store, delete=True, stop=self._stop)
        if found.orphans:
            log.info("removed %d superseded session(s), %d bytes", len(found.orphans), found.orphan_bytes)
        if found.unknown:
            log.warning(
                "%d stored session(s) are not in the index and are left alone; "
                "actograph store gc --dry-run names them",
                len(found.unknown),
            )
