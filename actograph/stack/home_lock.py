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
    """Take the permissions of all other users away from an existing home folder; its group keeps its own.

    Returns one line that says so, or that it could not be done; None if the home was closed already.
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
    """Holds `home/lock` while the context lasts; the kernel frees it however the process ends.

    Raises on entry:
        HomeInUse: another process holds it; the message names its pid.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._fd = -1

    def __enter__(self) -> Self:
        # what it holds is for the keys' owners, and not for every user of the machine
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        # children do not inherit the descriptor, and so do not hold the lock
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
