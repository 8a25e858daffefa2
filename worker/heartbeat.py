"""Shows in the index that this worker lives and how much memory it uses."""

import logging
import threading
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from storage import workers
from storage.database import Database

logger = logging.getLogger(__name__)


class Heartbeat:
    def __init__(
        self, database: Database, worker_id: str, *, seconds: float, memory: Callable[[], dict[str, int]]
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._seconds = seconds
        self._memory = memory
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(self._seconds):
            try:
                with self._database.write() as session:
                    workers.heartbeat(session, self._worker_id, self._memory())
            except SQLAlchemyError:
                logger.warning("no heartbeat could be written; trying again", exc_info=True)
