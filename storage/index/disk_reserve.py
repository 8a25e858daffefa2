"""Room on the disk of a SQLite index that only deletions may use.

To delete, SQLite must write first. On a full disk nothing could be deleted any more. So a file beside the
index holds some room back: a transaction that frees space removes it if the disk is full, and it is made
again once there is room. Other programs may fill the disk to the last byte; only the service itself, which
stores nothing below the disk floor, leaves the reserve alone.
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
#: The reserve is made again when there is so much room for others beside it.
_ROOM_BYTES = 3 * RESERVE_BYTES
#: errno of a disk, or a quota of the system, that has no room left
FULL = (errno.ENOSPC, errno.EDQUOT)

_frees: ContextVar[bool] = ContextVar("actograph_frees_space", default=False)


def prefer() -> None:
    """Let all further transactions of this context use the reserve: they free space."""
    _frees.set(True)


@contextmanager
def freeing() -> Iterator[None]:
    """Let transactions within the block use the reserve: they free space."""
    token = _frees.set(True)
    try:
        yield
    finally:
        _frees.reset(token)


class DiskReserve:
    """The file that holds the room. Any process of the service may remove it or make it again."""

    def __init__(self, index: Path) -> None:
        self.path = index.with_name(f"{index.name}.reserve")

    def release_if_needed(self) -> None:
        """Remove the reserve if the disk is full and the present transaction frees space."""
        if not _frees.get():
            return
        with suppress(OSError):
            if shutil.disk_usage(self.path.parent).free < RESERVE_BYTES and self.path.exists():
                self.path.unlink(missing_ok=True)
                log.warning(
                    "the disk is full: deletions use the %s bytes kept for them", f"{RESERVE_BYTES:,}"
                )

    def restore(self) -> None:
        """Make the reserve if it is missing and there is room for it."""
        try:
            if self.path.exists() or shutil.disk_usage(self.path.parent).free < RESERVE_BYTES + _ROOM_BYTES:
                return
            fresh = self.path.with_name(f"{self.path.name}.new")
            with fresh.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
            fresh.replace(self.path)
        except OSError as error:
            log.warning("no room could be kept for deletions: %s", error)
