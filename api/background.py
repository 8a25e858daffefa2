"""Background work of an API process: healing, batches, check of Redis.

Every process runs the healing (`storage.upkeep.healing`). One API process at a time handles a batch.
"""

import logging
import threading

from api.dependencies import Services
from api.openai.batches import advance_all
from storage.jobs import batches
from storage.upkeep.healing import Healing

log = logging.getLogger(__name__)


class Background:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._batches = threading.Thread()
        self.healing = Healing(services.settings, services.database, services.store, also=self._look)

    def stop(self) -> None:
        self.healing.stop()
        if self._batches.is_alive():
            self._batches.join(timeout=10)

    def _look(self) -> None:
        services = self._services
        services.broker.probe()
        with services.database.read() as session:
            has_batches = bool(batches.unended(session))
        if has_batches and not self._batches.is_alive():
            # reading a long file must not delay the healing
            self._batches = threading.Thread(target=self._advance, name="batches", daemon=True)
            self._batches.start()

    def _advance(self) -> None:
        try:
            advance_all(self._services)
        except Exception:
            log.exception("the batches failed; they are tried again")
