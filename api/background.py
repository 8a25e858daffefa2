"""Background work of an API process: healing, batches, check of Redis.

Every process runs the healing (`storage.upkeep.healing`). One API process at a time handles a batch.
"""

from functools import partial

from api.dependencies import Services
from api.openai.batches import advance_all
from storage.jobs import batches
from storage.upkeep.healing import Healing
from storage.upkeep.housekeeping import Threads


class Background:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._batches = Threads()
        self.healing = Healing(services.settings, services.database, services.store, also=self._look)

    def stop(self) -> None:
        self.healing.stop()
        self._batches.join()

    def _look(self) -> None:
        services = self._services
        services.broker.probe()
        with services.database.read() as session:
            has_batches = bool(batches.unended(session))
        if has_batches:
            # reading a long file must not delay the healing
            self._batches.start("batches", partial(advance_all, services))
