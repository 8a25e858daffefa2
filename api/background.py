"""Background work of an API process: batches, and the check of Redis.

One API process at a time handles a batch. Upkeep is a process of its own (`storage.upkeep`).
"""

import logging
import random
import threading

from sqlalchemy.exc import SQLAlchemyError

from api.dependencies import Services
from api.openai.batches import advance_all
from storage.jobs import batches

log = logging.getLogger(__name__)


class Background:
    """A thread that survives all errors."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._batches = threading.Thread()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="background", daemon=True)
        self._failing = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in (self._thread, self._batches):
            if thread.is_alive():
                thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._attempt()
            # jittered, so that many processes do not ask at the same moment
            self._stop.wait(self._services.settings.reconcile_seconds * random.uniform(0.5, 1.0))

    def _attempt(self) -> None:
        """Look once. An unavailable database is logged when it goes."""
        try:
            self._look()
        except SQLAlchemyError as error:
            if not self._failing:
                log.warning("batches wait for an unavailable database: %s", error)
            self._failing = True
        except Exception:
            log.exception("the background work failed; it is tried again")
        else:
            self._failing = False

    def _look(self) -> None:
        services = self._services
        services.broker.probe()
        with services.database.read() as session:
            has_batches = bool(batches.unended(session))
        if has_batches and not self._batches.is_alive():
            # reading a long file must not delay the probe
            self._batches = threading.Thread(target=self._advance, name="batches", daemon=True)
            self._batches.start()

    def _advance(self) -> None:
        try:
            advance_all(self._services)
        except Exception:
            log.exception("the batches failed; they are tried again")
