"""Shows in the index that this worker lives and how much memory it uses."""

import logging
import threading
from collections.abc import Callable

from storage.index.database import Database
from storage.queue import workers

logger = logging.getLogger(__name__)


class Heartbeat:
    def __init__(
        self, database: Database, worker_id: str, *, seconds: float, memory: Callable[[], dict[str, int]]
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._seconds = seconds
        self._memory = memory
        self._is_blind = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        is_failing = False
        while not self._done.wait(self._seconds):
            try:
                with self._database.write() as session:
                    workers.heartbeat(session, self._worker_id, self._look_at_memory())
            except Exception:  # the thread's end would look like the worker's
                if not is_failing:
                    logger.warning("no heartbeat could be written; trying again", exc_info=True)
                is_failing = True
            else:
                is_failing = False

    def _look_at_memory(self) -> dict[str, int] | None:
        """None if the device cannot tell: the worker lives all the same."""
        try:
            memory = self._memory()
        except Exception:
            if not self._is_blind:
                logger.warning("the memory in use cannot be read; heartbeats go without it", exc_info=True)
            self._is_blind = True
            return None
        self._is_blind = False
        return memory
