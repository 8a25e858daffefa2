"""The home folder of a service, which one service at a time uses."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actograph.contract.errors import Conflict


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Create the folder and lock `home/lock`. The kernel releases the lock when the process ends.

    Raises:
        Conflict: another process holds the lock; the message contains its pid.
    """
    # private: other users of the machine have no keys
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (home / "lock").open("a+", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise Conflict(
                f"another actograph up (pid {holder}) runs on {home}; stop it or choose another --home"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def id_of(home: Path) -> str:
    """Return the random id of a home folder. A later folder at the same path has another one."""
    file = home / "id"
    if not file.exists():
        file.write_text(secrets.token_hex(8), encoding="ascii")
    return file.read_text(encoding="ascii")
