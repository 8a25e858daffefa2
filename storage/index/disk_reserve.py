"""Disk space of a SQLite index that only deletions may use.

SQLite must write before it can delete, so nothing could be deleted on a full disk. A file beside the index
reserves some space. If the disk is full, a transaction that frees space removes the file. It is created again
once there is room.
"""

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

log = logging.getLogger(__name__)

RESERVE_BYTES = 16 << 20
#: free bytes beside the reserve before it is created again
_ROOM_BYTES = 3 * RESERVE_BYTES
#: errno of a full disk or an exhausted disk quota
FULL = (errno.ENOSPC, errno.EDQUOT)

_frees: ContextVar[bool] = ContextVar("actograph_frees_space", default=False)


def prefer() -> None:
    """Let all further transactions of this context use the reserve, because they free space."""
    _frees.set(True)


@contextmanager
def freeing() -> Iterator[None]:
    """Let transactions within the block use the reserve, because they free space."""
    token = _frees.set(True)
    try:
        yield
    finally:
        _frees.reset(token)


class DiskReserve:
    """The file that reserves the space. Any process may remove it or create it again."""

    def __init__(self, index: Path) -> None:
        self.path = index.with_name(f"{index.name}.reserve")

    def release_if_needed(self) -> None:
        """Remove the reserve if the disk is full and the current transaction frees space."""
        if not _frees.get():
            return
        with suppress(OSError):
            if shutil.disk_usage(self.path.parent).free < RESERVE_BYTES and self.path.exists():
                self.path.unlink(missing_ok=True)
                log.warning("the disk is full: deletions use the %s reserved bytes", f"{RESERVE_BYTES:,}")

    def restore(self) -> None:
        """Create the reserve if it is missing and there is room for it."""
        try:
            if self.path.exists() or shutil.disk_usage(self.path.parent).free < RESERVE_BYTES + _ROOM_BYTES:
                return
            fresh = self.path.with_name(f"{self.path.name}.new")
            with fresh.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
            fresh.replace(self.path)
        except OSError as error:
            log.warning("cannot reserve disk space for deletions: %s", error)
