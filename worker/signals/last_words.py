"""The last write of a process that is about to end, which must not wait for a database for ever."""

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 5.0


def write_last_words(write: Callable[[], None]) -> None:
    """Run `write` for at most `LAST_WORDS_SECONDS`, whatever becomes of it."""

    def attempt() -> None:
        try:
            write()
        except Exception:
            logger.warning("the reason could not be written down; it counts as a lost worker", exc_info=True)

    writer = threading.Thread(target=attempt, name="last-words", daemon=True)
    writer.start()
    writer.join(LAST_WORDS_SECONDS)
