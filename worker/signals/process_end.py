"""The end of a worker's child process after a failure: exit statuses, and its last write to the index."""

import logging
import os
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

#: the device made no progress; only the end of the process frees a stuck kernel
STALLED = 70
#: the device reported an error that only a new process recovers from
DEVICE_LOST = 71
LAST_WRITE_SECONDS = 5.0


def last_write(write: Callable[[], None]) -> None:
    """Run `write` for at most `LAST_WRITE_SECONDS`; an error is only logged."""

    def attempt() -> None:
        try:
            write()
        except Exception:
            logger.warning("the reason could not be stored; the worker counts as lost", exc_info=True)

    writer = threading.Thread(target=attempt, name="last-write", daemon=True)
    writer.start()
    writer.join(LAST_WRITE_SECONDS)


def is_alive(pid: int) -> bool:
    """True if a process of this machine has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
