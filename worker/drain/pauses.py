"""Reasons to claim nothing: a full disk, an unavailable store, quotas, a pause."""

import logging

from sqlalchemy.orm import Session

from actograph.contract.errors import ServiceUnavailable
from actograph.settings import Settings
from storage.accounts import quotas
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from storage.queue import pause, workers
from storage.queue.pause import disk_pause
from worker.drain.store_outage import StoreOutage

logger = logging.getLogger(__name__)


class Pauses:
    def __init__(self, settings: Settings, database: Database, store: ArtifactStore, worker_id: str) -> None:
        self._settings = settings
        self._worker_id = worker_id
        self._shown: ServiceUnavailable | None = None
        self._database = database
        self._store = store
        #: failures of the store, noted by commits and preparations
        self.outage = StoreOutage(store)
        self._has_said = False
        self._said_of_owners: set[str] = set()

    def hold(self) -> bool:
        """Whether no sample may start now; logs the reason once."""
        reason = disk_pause(self._store, self._settings.disk_floor_bytes)
        if reason is not None:
            return self._say(reason)
        is_out = self.outage.holds()
        self._show(self.outage.reason)
        if is_out:
            return True
        with self._database.read() as session:
            full = quotas.read(session, self._settings).pause()
            if full is not None:
                return self._say(full)
            is_held = pause.holds(session)
        if self._has_said:
            logger.warning("samples start again")
        self._has_said = False
        return is_held

    def _show(self, reason: ServiceUnavailable | None) -> None:
        """Show an outage of the store in the index, where the API finds why jobs wait."""
        if str(reason) == str(self._shown):
            return
        with self._database.write() as session:
            workers.set_trouble(session, self._worker_id, reason)
        self._shown = reason

    def held_owners(self, session: Session) -> list[str]:
        """Owners at their quota; their jobs wait."""
        limits = quotas.read(session, self._settings)
        held = limits.paused_owners()
        reasons = {reason for owner in held if (reason := limits.owner_pause(owner))}
        for reason in reasons - self._said_of_owners:
            logger.info("jobs of this owner wait: %s", reason)
        self._said_of_owners = reasons
        return held

    def _say(self, reason: str) -> bool:
        if not self._has_said:
            logger.warning("no sample may start: %s", reason)
        self._has_said = True
        return True
