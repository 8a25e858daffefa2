"""A tar.gz that is made while it is downloaded.

A member's size precedes its bytes, so content of unknown length is written to a spool first: in memory while
it is small, then in a temporary file without a name.
"""

import io
import os
import tarfile
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import chain
from tempfile import SpooledTemporaryFile
from typing import IO

SPOOL_IN_MEMORY = 1 << 18
CHUNK = 1 << 16
#: text shrinks to a quarter at the fastest level
LEVEL = 1


def new_spool() -> IO[bytes]:
    return SpooledTemporaryFile(max_size=SPOOL_IN_MEMORY)


class TarGz:
    """Members in one top folder. Each step returns the bytes to send."""

    def __init__(self, top: str, modified_at: int) -> None:
        """`modified_at`: time of every member in Unix seconds; the same members give the same archive."""
        self._top = top
        self._modified_at = modified_at
        self._gzip = zlib.compressobj(LEVEL, wbits=16 + zlib.MAX_WBITS)

    def add(self, path: str, content: bytes | IO[bytes]) -> Iterator[bytes]:
        """Add bytes, or a spool's content from its beginning."""
        file = io.BytesIO(content) if isinstance(content, bytes) else content
        info = tarfile.TarInfo(f"{self._top}/{path}")
        info.size, info.mtime, info.mode = file.seek(0, os.SEEK_END), self._modified_at, 0o644
        file.seek(0)
        header, padding = info.tobuf(tarfile.PAX_FORMAT), bytes(-info.size % tarfile.BLOCKSIZE)
        for piece in chain([header], iter(partial(file.read, CHUNK), b""), [padding]):
            if compressed := self._gzip.compress(piece):
                yield compressed

    def end(self) -> bytes:
        """The bytes after the last member."""
        return self._gzip.compress(bytes(2 * tarfile.BLOCKSIZE)) + self._gzip.flush()
