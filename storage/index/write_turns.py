"""Writers of one SQLite file take turns.

SQLite lets a writer that finds the file locked sleep and look again, for up to 0.1 s at a time. Under load
the sleepers starve: with 40 threads at once an answer took seconds. Waiting for a lock of the kernel's
instead wakes the next one at once, among threads and among processes.
"""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class WriteTurns:
    """One for each process and database file; the lock lies in a file beside it, named `<database>-turn`."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(f"{database.name}-turn")
        self._threads = threading.Lock()
        self._file: int | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Holds everyone else off; a process that dies gives its turn back."""
        with self._threads:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    @contextmanager
    def alone(self, name: str) -> Iterator[bool]:
        """Whether nobody else is in the block of this name; see Database.alone."""
        path, held = self._path.with_name(f"{self._path.name}-{name}"), False
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            yield held
        finally:
            os.close(file)

    def close(self) -> None:
        with self._threads:
            if self._file is not None:
                os.close(self._file)
                self._file = None
