"""Background thread of an API process: healing, batches, check of Redis.

Every process runs the healing (`storage.upkeep.healing`). One API process at a time handles
batches.
"""

import logging
import threading

from api.dependencies import Services
from api.openai.batch_keeper import BatchKeeper
from storage.jobs import batches
from storage.upkeep.healing import Healing
from storage.upkeep.housekeeping import Threads

log = logging.getLogger(__name__)


class Reconciler:
    """A thread that runs every `reconcile_seconds` until it is stopped."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._stop = threading.Event()
        self._threads = Threads()
        self._healing = Healing(services.settings, services.database, services.store, also=self._own_duties)

    @property
    def has_looked(self) -> threading.Event:
        """Set after the first round, successful or not."""
        return self._healing.has_looked

    def start(self) -> None:
        self._healing.start()

    def stop(self) -> None:
        self._stop.set()
        self._healing.stop()
        self._threads.join()

    def reconcile_once(self) -> None:
        """Run one round of everything, due or not.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: the database does not answer.
        """
        self._own_duties()
        self._healing.round()

    def _own_duties(self) -> None:
        services = self._services
        services.broker.probe()
        with services.database.read() as session:
            has_batches = bool(batches.unended(session))
        if has_batches:
            self._threads.start("batches", self._advance_batches)

    def _advance_batches(self) -> None:
        BatchKeeper(self._services).advance_all()
