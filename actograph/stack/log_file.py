"""The log of a program run by `up`, with rotation."""

import os
import shutil
import time
from pathlib import Path
from typing import BinaryIO

_TAIL_BYTES = 8 << 10
_RETRY_SECONDS = 60.0


class LogFile:
    """A log file and the previous one (`NAME.1`).

    The program keeps the file open, so rotation copies the content and truncates the file, like logrotate's
    `copytruncate`. Lines written between copy and truncation are lost.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        #: the previous log
        self.older = path.with_name(f"{path.name}.1")
        self._max_bytes = max_bytes
        self._begun_at = 0
        self._retry_at = 0.0

    def open(self) -> BinaryIO:
        """Open the file for appending; `tail` shows lines from now on."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        log = self.path.open("ab")
        self._begun_at = log.tell()
        return log

    def rotate(self) -> None:
        """Rotate the file if it is too large; call this regularly.

        Raises:
            OSError: the copy failed, for example on a full disk, after `older` was deleted. The file is
                unchanged, and calls in the next minute do nothing.
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
        """Return the last lines since `open`."""
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
