"""Turns of the writers of one SQLite file.

If the file is locked, SQLite sleeps up to 0.1 s before each retry. Under load the sleepers starve: with 40
threads a request took seconds. A kernel lock wakes the next writer at once, among threads and processes.
"""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class WriteTurns:
    """The lock of one database file in one process. It is in the file `<database>-turn`."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(f"{database.name}-turn")
        self._threads = threading.Lock()
        self._file: int | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Exclude all other writers. The death of a process ends its turn."""
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
        """See `Database.alone`."""
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
