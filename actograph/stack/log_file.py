"""The log of a program that `up` runs: appended to by the program, kept from growing for ever by `up`."""

import os
import shutil
import time
from pathlib import Path
from typing import BinaryIO

_TAIL_BYTES = 8 << 10
_RETRY_SECONDS = 60.0


class LogFile:
    """A file and, beside it, the part that stood in it before (`NAME.1`).

    Who writes keeps the file open, so that it cannot be moved away from them: its content is copied and the
    file emptied, as logrotate's `copytruncate` does. Lines that come in the microseconds between are lost.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        #: the file before this one
        self.older = path.with_name(f"{path.name}.1")
        self._max_bytes = max_bytes
        self._begun_at = 0
        self._retry_at = 0.0

    def open(self) -> BinaryIO:
        """For a program's output, which is appended; `tail` shows what it writes from now on."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        log = self.path.open("ab")
        self._begun_at = log.tell()
        return log

    def put_aside(self) -> None:
        """Move the content into `older` if the file has grown too large; call it regularly.

        Raises:
            OSError: it cannot be copied, for example for want of room, though what stood in `older` was given
                up first. The file stays as it is, and calls in the next minute do nothing.
        """
        if time.monotonic() < self._retry_at or not self._is_large():
            return
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        self.older.unlink(missing_ok=True)
        try:
            with self.path.open("rb") as log, self.older.open("xb") as older:
                shutil.copyfileobj(log, older, 1 << 20)
        except OSError:
            self.older.unlink(missing_ok=True)
            raise
        os.truncate(self.path, 0)
        self._begun_at, self._retry_at = 0, 0.0

    def tail(self, lines: int) -> str:
        """The last lines written since the program was started."""
        try:
            with self.path.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._begun_at, end - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _is_large(self) -> bool:
        try:
            return self.path.stat().st_size > self._max_bytes
        except FileNotFoundError:
            return False
