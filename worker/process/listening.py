"""The thread that turns notices of the index into hints: by LISTEN on Postgres, otherwise through Redis."""

import logging
import threading
from collections.abc import Collection
from contextlib import AbstractContextManager

import psycopg
import redis
from sqlalchemy.engine import make_url

from actograph.settings import Settings
from storage.broker import hints as broker_hints
from storage.index import notices
from storage.index.notices import ALL, NoSession, Wait
from worker.signals.hints import Hints

logger = logging.getLogger(__name__)

#: between two attempts to connect
RETRY_SECONDS = 2.0
#: a stop waits for up to so long
WAIT_SECONDS = 0.5


class Listening:
    """Listens until it is stopped. While nobody answers, the hints are not live and the worker polls."""

    def __init__(self, settings: Settings, hints: Hints, models: Collection[str]) -> None:
        """`models`: those whose notices matter."""
        self._hints, self._models = hints, {ALL, *models}
        url = make_url(settings.listen_database_url or settings.effective_database_url)
        self._postgres = url if url.get_backend_name() == "postgresql" else None
        self._broker_url = settings.broker_url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listening", daemon=True)
        self._is_failing = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2 * RETRY_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set() and (self._postgres is not None or self._broker_url):
            try:
                with self._source() as wait:
                    self._follow(wait)
            except NoSession as error:
                logger.warning(
                    "%s; Redis wakes this worker instead, if there is one. Name Postgres itself in "
                    "ACTOGRAPH_LISTEN_DATABASE_URL",
                    error.message,
                )
                self._postgres = None
            except (psycopg.Error, redis.RedisError, OSError) as error:
                self._note(error)
                self._stop.wait(RETRY_SECONDS)
            except Exception:
                logger.exception("notices of the index cannot be followed; trying again")
                self._stop.wait(RETRY_SECONDS)
            finally:
                self._hints.are_live = False

    def _source(self) -> AbstractContextManager[Wait]:
        if self._postgres is not None:
            return notices.listen(self._postgres)
        return broker_hints.listen(self._broker_url)

    def _follow(self, wait: Wait) -> None:
        self._hints.are_live = True
        if self._is_failing:
            logger.warning("notices of the index come again")
            self._is_failing = False
        self._hints.give()  # those before are missed
        while not self._stop.is_set():
            if not self._models.isdisjoint(wait(WAIT_SECONDS)):
                self._hints.give()

    def _note(self, error: Exception) -> None:
        if not self._is_failing:
            logger.warning(
                "no notices of the index (%s: %s); the worker polls it", type(error).__name__, error
            )
        self._is_failing = True
