"""Reasons to begin nothing: a full disk, a store that is away, quotas, a pause."""

import logging

from sqlalchemy.orm import Session

from actograph.settings import Settings
from storage.accounts import quotas
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from storage.queue import pause
from storage.queue.pause import disk_pause
from worker.drain.store_outage import StoreOutage

logger = logging.getLogger(__name__)


class Pauses:
    def __init__(self, settings: Settings, database: Database, store: ArtifactStore) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        #: what units and preparations find out about the store is noted here
        self.outage = StoreOutage(store)
        self._has_said = False
        self._said_of_owners: set[str] = set()

    def hold(self) -> bool:
        """Whether nothing at all may be begun now; the log says why, once."""
        reason = disk_pause(self._store, self._settings.disk_floor_bytes)
        if reason is not None:
            return self._say(reason)
        if self.outage.holds():
            return True
        with self._database.read() as session:
            full = quotas.read(session, self._settings).pause()
            if full is not None:
                return self._say(full)
            is_held = pause.holds(session)
        if self._has_said:
            logger.warning("there is room again for new work")
        self._has_said = False
        return is_held

    def held_owners(self, session: Session) -> list[str]:
        """Owners at their quota; nothing of theirs is begun."""
        limits = quotas.read(session, self._settings)
        held = limits.paused_owners()
        reasons = {reason for owner in held if (reason := limits.owner_pause(owner))}
        for reason in reasons - self._said_of_owners:
            logger.info("nothing of this owner is begun: %s", reason)
        self._said_of_owners = reasons
        return held

    def _say(self, reason: str) -> bool:
        if not self._has_said:
            logger.warning("nothing new is begun: %s", reason)
        self._has_said = True
        return True
