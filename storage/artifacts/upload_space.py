"""Files that wait for their upload: in memory while they fit, then on disk, both bounded.

The files on disk have no name, so nothing is left of a killed process.
"""

import errno
import io
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from typing_extensions import Buffer

from actograph.contract.errors import StorageFull
from storage.artifacts.store import PIECE_BYTES

log = logging.getLogger(__name__)

#: errno of a full disk or an exhausted disk quota
_FULL = (errno.ENOSPC, errno.EDQUOT)
_WAIT_SECONDS = 1.0


class UploadSpace:
    """Bounds the memory and the disk of all files that wait. Safe for use from many threads.

    A file that has no room waits while uploads go on, since these give room back.
    """

    def __init__(self, folder: Path, *, memory_bytes: int, disk_bytes: int) -> None:
        """
        Args:
            folder: for files that do not fit in memory; it is created when one does not.
        """
        self.folder = folder
        self._memory_bytes, self._disk_bytes = memory_bytes, disk_bytes
        self._changed = threading.Condition()
        self._memory = self._disk = 0
        self._uploads = 0

    @property
    def memory(self) -> int:
        """Bytes in memory."""
        return self._memory

    @property
    def disk(self) -> int:
        """Bytes on disk."""
        return self._disk

    @property
    def is_crowded(self) -> bool:
        """Whether half of the memory is full."""
        return self._memory + self._disk > self._memory_bytes // 2

    @contextmanager
    def uploading(self) -> Iterator[None]:
        """Count an upload, which will give room back."""
        with self._changed:
            self._uploads += 1
        try:
            yield
        finally:
            with self._changed:
                self._uploads -= 1
                self._changed.notify_all()

    def take_memory(self, size: int) -> bool:
        """Take memory. Returns False if there is too little."""
        with self._changed:
            if self._memory + size > self._memory_bytes:
                return False
            self._memory += size
            return True

    def take_disk(self, size: int) -> None:
        """Take disk space; wait for uploads if there is too little.

        Raises:
            StorageFull: nothing is uploaded that would give some back.
        """
        with self._changed:
            while self._disk + size > self._disk_bytes:
                if not self._uploads:
                    raise StorageFull(
                        f"files that wait for their upload take {self._memory:,} bytes of memory and "
                        f"{self._disk:,} bytes on disk; {size:,} bytes more exceed the {self._disk_bytes:,} "
                        "on disk (ACTOGRAPH_UPLOAD_DISK_BYTES)"
                    )
                self._changed.wait()
            self._disk += size

    def wait(self) -> bool:
        """Wait for an upload that gives room back, for a while. Returns False if there is no upload."""
        with self._changed:
            if self._uploads:
                self._changed.wait(_WAIT_SECONDS)  # it may just have ended
            return self._uploads > 0

    def give(self, *, memory: int = 0, disk: int = 0) -> None:
        """Give room back."""
        with self._changed:
            self._memory -= memory
            self._disk -= disk
            self._changed.notify_all()


class StagedFile(io.RawIOBase):
    """A new file; it keeps its content after `close`, until `drop`."""

    def __init__(self, space: UploadSpace, report: Callable[[], None]) -> None:
        """`report` is called for every piece that is written or read."""
        self._space, self._report = space, report
        self._file: BinaryIO = io.BytesIO()
        self._is_on_disk = False
        #: bytes taken from the space
        self._taken = 0

    def write(self, data: Buffer, /) -> int:
        """Write all bytes. Raises StorageFull, and OSError if the disk is full and nothing is uploaded."""
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        for start in range(0, len(view), PIECE_BYTES):
            piece = view[start : start + PIECE_BYTES]
            self._grow(self._file.tell() + len(piece))
            self._put(self._file, piece)
            self._report()
        return len(view)

    def _grow(self, size: int) -> None:
        """Have room for so many bytes in all; move the file to the disk if memory has too little."""
        more = size - self._taken
        if more <= 0:
            return
        if self._is_on_disk:
            self._space.take_disk(more)
        elif not self._space.take_memory(more):
            self._space.take_disk(size)
            try:
                self._move()
            except BaseException:
                self._space.give(disk=size)
                raise
            self._space.give(memory=self._taken)
        self._taken = size

    def _move(self) -> None:
        held = cast(io.BytesIO, self._file)
        self._space.folder.mkdir(parents=True, exist_ok=True)
        file = cast(BinaryIO, tempfile.TemporaryFile(dir=self._space.folder, buffering=0))  # noqa: SIM115 (`drop` closes it)
        at = held.tell()
        try:
            held.seek(0)
            # copies: a view of the memory would live on in the frames of an error, and prevent its release
            while piece := held.read(PIECE_BYTES):
                self._put(file, memoryview(piece))
        except BaseException:
            file.close()
            raise
        finally:
            held.seek(at)
        file.seek(at)
        self._file, self._is_on_disk = file, True

    def _put(self, file: BinaryIO, data: memoryview) -> None:
        """Write all of `data`; while the disk is full, wait for uploads that free some of it."""
        is_told = False
        while data:
            try:
                data = data[file.write(data) :]
            except OSError as error:
                if error.errno not in _FULL or not self._space.wait():
                    raise
                if not is_told:
                    is_told = True
                    log.warning(
                        "%s: %s; a session waits for uploads, which free space", self._space.folder, error
                    )

    def readinto(self, buffer: Buffer, /) -> int:
        self._report()
        return cast(io.BytesIO, self._file).readinto(buffer)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Keep the content: it is uploaded from here."""

    def drop(self) -> None:
        """Free memory and disk."""
        taken, self._taken = self._taken, 0
        self._space.give(**{"disk" if self._is_on_disk else "memory": taken})
        self._file.close()
