"""The home folder of a service: one service each, closed to other users."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actograph.contract.errors import Conflict


def close_to_others(home: Path) -> str | None:
    """Remove the permissions of other users from an existing home folder; the group keeps its own.

    Returns one line about the change or its failure; None if there was nothing to change.
    """
    try:
        mode = home.stat().st_mode & 0o777
        if not mode & 0o007:
            return None
        home.chmod(mode & 0o770)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{home} is open to every user of this machine: {error}; run chmod o-rwx on it"
    return f"{home} was open to every user of this machine (mode {mode:o}); its mode is {mode & 0o770:o} now"


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Create the folder and lock `home/lock`. The kernel releases the lock when the process ends.

    Raises:
        Conflict: another process holds the lock; the message contains its pid.
    """
    # private: other users of the machine have no keys
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    # children do not inherit the descriptor
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 32).decode().strip() or "unknown"
            raise Conflict(
                f"another actograph up (pid {holder}) runs on {home}; stop it or choose another --home"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(lock, 0)
    finally:
        os.close(lock)
