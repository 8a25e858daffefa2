"""One service per home folder."""

import fcntl
import os
from pathlib import Path
from typing import Self

from actograph.contract.errors import Conflict


class HomeInUse(Conflict):
    """Another service runs on this home folder."""

    code = "home_in_use"


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


class HomeLock:
    """Locks `home/lock` while the context lasts. The kernel releases it when the process ends.

    Raises on entry:
        HomeInUse: another process holds the lock; the message contains its pid.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._fd = -1

    def __enter__(self) -> Self:
        # private: other users of the machine have no keys
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        # children do not inherit the descriptor
        self._fd = os.open(self._home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._fd, 32).decode().strip() or "unknown"
            os.close(self._fd)
            raise HomeInUse(
                f"another actograph up (pid {holder}) runs on {self._home}; stop it or choose another --home"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(self, *exc: object) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)
