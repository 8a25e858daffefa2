"""Reasons to claim nothing: a full disk, an unavailable store, quotas.

A claim sees a pause of the queue by itself.
"""

import logging
import time

from sqlalchemy.orm import Session

from actograph.contract.errors import ServiceUnavailable
from actograph.settings import Settings
from storage.accounts import quotas
from storage.accounts.quotas import Quotas
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from storage.queue import workers
from storage.queue.pause import disk_pause
from worker.drain.store_outage import StoreOutage

logger = logging.getLogger(__name__)

#: a new quota is seen after so long, if there was none
UNLIMITED_SECONDS = 5.0


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
        self._last_limits = Quotas()
        self._unlimited_until = float("-inf")

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
            full = self._limits(session).pause()
        if full is not None:
            return self._say(full)
        if self._has_said:
            logger.warning("samples start again")
        self._has_said = False
        return False

    def _limits(self, session: Session) -> Quotas:
        """The quotas now. If nothing is limited, this is so for a while."""
        if time.monotonic() >= self._unlimited_until:
            self._last_limits = quotas.read(session, self._settings)
            if not self._last_limits.are_in_force:
                self._unlimited_until = time.monotonic() + UNLIMITED_SECONDS
        return self._last_limits

    def _show(self, reason: ServiceUnavailable | None) -> None:
        """Show an outage of the store in the index, where the API finds why jobs wait."""
        if str(reason) == str(self._shown):
            return
        with self._database.write() as session:
            workers.set_trouble(session, self._worker_id, reason)
        self._shown = reason

    def held_owners(self) -> list[str]:
        """Owners at their quota; their jobs wait."""
        with self._database.read() as session:
            limits = self._limits(session)
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
