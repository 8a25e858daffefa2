"""What the reconciler must not wait for: expiry, what killed writers left, and webhooks.

They may take long, on S3 or with slow receivers, and lost messages must not wait for that: so they run in
threads of their own, at most one of each.
"""

import logging
import threading
import time
from collections.abc import Callable

import sqlalchemy as sa

from actograph.contract.errors import ActographError
from api.batch_keeper import BatchKeeper
from api.dependencies import Services
from api.webhooks import WebhookSender
from storage import batches, chat_retention, file_expiry, idempotency, session_changes, webhooks
from storage.sweep import sweep_sessions

log = logging.getLogger(__name__)

#: what a killed writer left is removed once it is certainly no writer's any more
STAGING_SECONDS = 3600.0
SWEEP_EVERY_SECONDS = 600.0
#: sessions that are deleted between two looks at whether the process ends
EXPIRE_BATCH = 50
#: of the time, at most, goes into looking for old chats among those that are kept for their sessions
CHATS_SHARE = 0.02


class Housekeeping:
    """`tick` starts what is due and returns at once; `stop` ends it."""

    def __init__(self, services: Services, stop: threading.Event) -> None:
        self._services = services
        self._stop = stop
        self._threads: dict[str, threading.Thread] = {}
        self._swept_at = float("-inf")
        self._chats_due_at = float("-inf")

    def tick(self) -> None:
        """Raises sqlalchemy.exc.SQLAlchemyError where the database does not answer."""
        with self._services.database.read() as session:
            due = session_changes.expired(session).sessions or file_expiry.is_any_due(session)
            has_webhooks = webhooks.is_any_due(session)
            has_batches = bool(batches.unended(session))
        if has_batches:
            self._start("batches", self._advance_batches)
        if has_webhooks:
            self._start("webhooks", self._deliver)
        if due:
            self._start("expiry", self._expire)
        if self._services.settings.chat_retention_seconds and time.monotonic() >= self._chats_due_at:
            self._start("chats", self._forget_chats)
        if time.monotonic() - self._swept_at >= SWEEP_EVERY_SECONDS:
            self._swept_at = time.monotonic()
            self._start("sweeper", self._sweep)

    def join(self, timeout: float = 10) -> None:
        """Wait for what runs; it ends soon once the stop event is set."""
        for thread in self._threads.values():
            thread.join(timeout)

    def _start(self, name: str, work: Callable[[], None]) -> None:
        running = self._threads.get(name)
        if running is None or not running.is_alive():
            self._threads[name] = threading.Thread(
                target=self._guarded, args=(name, work), name=name, daemon=True
            )
            self._threads[name].start()

    @staticmethod
    def _guarded(name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except (ActographError, sa.exc.SQLAlchemyError, OSError) as error:
            log.warning("the %s broke off: %s", name, error)
        except Exception:
            log.exception("the %s failed; it is tried again", name)

    def _advance_batches(self) -> None:
        BatchKeeper(self._services).advance_all()

    def _deliver(self) -> None:
        services = self._services
        made = WebhookSender(services.settings, services.database, self._stop).deliver_due()
        log.info("made %d attempt(s) to deliver webhooks", made)

    def _expire(self) -> None:
        services, total = self._services, session_changes.Count()
        if files := file_expiry.expire(services.database, services.store):
            log.info("deleted %d expired file(s)", files)
        while not self._stop.is_set():
            gone = session_changes.expire(services.database, services.store, limit=EXPIRE_BATCH)
            if not gone.sessions:
                break
            total = total + gone
        if total.sessions:
            log.info("deleted %d expired session(s), %d bytes", total.sessions, total.bytes)

    def _forget_chats(self) -> None:
        services, total = self._services, 0
        while not self._stop.is_set():
            began = time.monotonic()
            with services.database.read() as session:
                gone = chat_retention.forgettable(
                    session, services.settings.chat_retention_seconds, limit=EXPIRE_BATCH
                )
            if not gone:
                looked = time.monotonic()
                self._chats_due_at = looked + (looked - began) / CHATS_SHARE
                break
            with services.database.write() as session:
                chat_retention.forget(session, gone)
            total += len(gone)
        if total:
            log.info("removed %d answered chat(s)", total)

    def _sweep(self) -> None:
        services = self._services
        with services.database.write() as session:
            idempotency.forget(session)
        removed = services.store.sweep_staging(STAGING_SECONDS)
        if removed:
            log.info("removed %d leftover(s) of writers that were killed", removed)
        found = sweep_sessions(services.database, services.store, delete=True, stop=self._stop)
        if found.orphans:
            log.info("removed %d superseded session(s), %d bytes", len(found.orphans), found.orphan_bytes)
        if found.unknown:
            log.warning(
                "%d stored session(s) are not in the index and are left alone; "
                "actograph store gc --dry-run names them",
                len(found.unknown),
            )
