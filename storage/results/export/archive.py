"""A tar.gz that is made while it is read: memory holds one block of it, whatever its size.

A member's size stands before its bytes, so that what is not known beforehand is spooled: in memory
while it is small, then in a temporary file without a name.
"""

import io
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import IO, Self

SPOOL_IN_MEMORY = 1 << 18
CHUNK = 1 << 16
#: text shrinks to a quarter at the fastest level already, and the API has other things to do
LEVEL = 1
_GZIP = 31


class Spool:
    """Bytes written first and read once, back to front of a member's header."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=SPOOL_IN_MEMORY)  # noqa: SIM115
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def chunks(self) -> Iterator[bytes]:
        """All that was written, in pieces."""
        self._file.seek(0)
        while piece := self._file.read(CHUNK):
            yield piece

    @property
    def file(self) -> IO[bytes]:
        """For a writer that seeks; `measure` afterwards."""
        return self._file

    def measure(self) -> int:
        """Bytes that are there, whoever wrote them."""
        self.size = self._file.seek(0, io.SEEK_END)
        return self.size

    def clear(self) -> None:
        """Forget what was written."""
        self._file.seek(0)
        self._file.truncate()
        self.size = 0

    def close(self) -> None:
        self._file.close()


class TarGz:
    """Members one after the other under one top folder; the caller sends on what each step yields."""

    def __init__(self, top: str, modified_at: int) -> None:
        """`modified_at`: Unix seconds that every member carries, so that an archive can be made twice."""
        self._top = top
        self._modified_at = modified_at
        self._gzip = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP)
        self._ready: list[bytes] = []
        self._waiting = 0

    def add(self, path: str, size: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """A file of exactly `size` bytes.

        Raises:
            ValueError: the chunks have another size; the archive is of no use then.
        """
        info = tarfile.TarInfo(f"{self._top}/{path}")
        info.size, info.mtime, info.mode = size, self._modified_at, 0o644
        yield from self._pack(info.tobuf(tarfile.PAX_FORMAT))
        written = 0
        for chunk in chunks:
            written += len(chunk)
            yield from self._pack(chunk)
        if written != size:
            raise ValueError(f"{path}: {written} bytes instead of {size}")
        yield from self._pack(b"\0" * (-size % tarfile.BLOCKSIZE))

    def add_bytes(self, path: str, data: bytes) -> Iterator[bytes]:
        return self.add(path, len(data), (data,))

    def add_spool(self, path: str, spool: Spool) -> Iterator[bytes]:
        """The spool's bytes; it is closed afterwards."""
        with spool:
            yield from self.add(path, spool.size, spool.chunks())

    def flush(self) -> Iterator[bytes]:
        """All that is held back, so that whoever reads has every member so far."""
        self._ready.append(self._gzip.flush(zlib.Z_SYNC_FLUSH))
        yield self._taken()

    def end(self) -> Iterator[bytes]:
        """What must follow the last member."""
        yield from self._pack(b"\0" * (2 * tarfile.BLOCKSIZE))
        self._ready.append(self._gzip.flush())
        yield self._taken()

    def _pack(self, data: bytes) -> Iterator[bytes]:
        packed = self._gzip.compress(data)
        if packed:
            self._ready.append(packed)
            self._waiting += len(packed)
        if self._waiting >= CHUNK:
            yield self._taken()

    def _taken(self) -> bytes:
        data = b"".join(self._ready)
        self._ready.clear()
        self._waiting = 0
        return data
