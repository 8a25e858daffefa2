"""Work of background threads that is tried again after any error."""

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Attempts:
    """Logs the first error of each series. No error ends the thread: its end would look like the worker's."""

    def __init__(self, failure: str) -> None:
        """`failure` is the log message."""
        self._failure = failure
        self._is_failing = False

    def run(self, work: Callable[[], object]) -> bool:
        """Run `work`. Returns False after an error."""
        try:
            work()
        except Exception:
            if not self._is_failing:
                logger.warning("%s; trying again", self._failure, exc_info=True)
            self._is_failing = True
            return False
        self._is_failing = False
        return True
