"""A tar.gz that is made while it is downloaded.

A member's size precedes its bytes, so content of unknown length is written to a spool first: in memory while
it is small, then in a temporary file without a name. Compressed bytes wait in another one, so memory does not
grow with the size of a member.
"""

import gzip
import io
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from tempfile import SpooledTemporaryFile
from typing import IO

SPOOL_IN_MEMORY = 1 << 18
CHUNK = 1 << 16
#: text shrinks to a quarter at the fastest level
LEVEL = 1


def new_spool() -> IO[bytes]:
    return SpooledTemporaryFile(max_size=SPOOL_IN_MEMORY)


def joined(spools: Iterable[IO[bytes]]) -> IO[bytes]:
    """One spool with the content of several."""
    whole = new_spool()
    for spool in spools:
        spool.seek(0)
        shutil.copyfileobj(spool, whole, CHUNK)
    return whole


class TarGz:
    """Members in one top folder. Each step returns the bytes to send."""

    def __init__(self, top: str, modified_at: int, spools: ExitStack) -> None:
        """`modified_at`: time of every member in Unix seconds; the same members give the same archive."""
        self._top = top
        self._modified_at = modified_at
        self._ready = spools.enter_context(new_spool())
        self._gzip = spools.enter_context(
            gzip.GzipFile(fileobj=self._ready, mode="wb", compresslevel=LEVEL, mtime=modified_at, filename="")
        )
        self._tar = tarfile.open(fileobj=self._gzip, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def add(self, path: str, content: bytes | IO[bytes]) -> Iterator[bytes]:
        """Add bytes, or a spool's content from its beginning."""
        file = io.BytesIO(content) if isinstance(content, bytes) else content
        info = tarfile.TarInfo(f"{self._top}/{path}")
        info.size, info.mtime, info.mode = file.seek(0, os.SEEK_END), self._modified_at, 0o644
        file.seek(0)
        self._tar.addfile(info, file)
        self._tar.getmembers().clear()  # or it would describe every member again
        if self._ready.tell() >= CHUNK:
            yield from self._taken()

    def flush(self) -> Iterator[bytes]:
        """All bytes so far, so that the receiver has every member added before."""
        self._gzip.flush()
        yield from self._taken()

    def end(self) -> Iterator[bytes]:
        """The bytes after the last member."""
        self._tar.close()
        self._gzip.close()
        yield from self._taken()

    def _taken(self) -> Iterator[bytes]:
        self._ready.seek(0)
        while piece := self._ready.read(CHUNK):
            yield piece
        self._ready.seek(0)
        self._ready.truncate()
