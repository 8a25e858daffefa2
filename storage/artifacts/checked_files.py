"""Reads of stored files, compared with the size and sha256 recorded when the file was written.

A file that is read whole is verified by its sha256. A range is compared with nothing but the file's end:
`store verify` and clients compare whole files.
"""

import hashlib
import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from actograph.contract.errors import NotFound, RangeNotSatisfiable, StoreDamaged
from storage.artifacts.store import STREAM_CHUNK, ArtifactStore


class CheckedFile:
    """A stored file. Every method raises StoreDamaged if the file is missing or shorter than recorded."""

    def __init__(self, store: ArtifactStore, key: str, *, size: int, sha256: str) -> None:
        self.key = key
        self.size = size
        self.sha256 = sha256
        self._store = store

    def damage(self, reason: str) -> StoreDamaged:
        """An error that names the session and the file, or the upload."""
        _, artifact, *names = self.key.split("/")
        name = names[0] if names else None
        label = f"session {artifact}: {name}" if name else f"file {artifact}"
        return StoreDamaged(
            f"{label} is damaged in the store: {reason}; `actograph store verify` lists all damage",
            artifact=artifact,
            file=name,
        )

    def check_size(self) -> None:
        """Compare the size in the store with the recorded one."""
        try:
            found = self._store.size(self.key)
        except NotFound:
            raise self.damage("it is missing") from None
        if found != self.size:
            raise self.damage(f"it has {found} bytes, {self.size} were written")

    def check_whole(self) -> None:
        """Read the file and compare its sha256."""
        self.check_size()
        for _ in self.stream():
            pass

    def read(self, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start`, unverified."""
        try:
            return self._store.read(self.key, start, length)
        except (NotFound, RangeNotSatisfiable) as error:
            raise self.damage(error.message) from error

    def open(self) -> BinaryIO:
        """The file as a seekable stream, unverified."""
        return io.BufferedReader(_Ranges(self), STREAM_CHUNK)

    def stream(self) -> Iterator[bytes]:
        """The whole file in pieces. It is verified before the last piece is returned."""
        digest, last = hashlib.sha256(), b""
        for piece in self.pieces(0, self.size):
            digest.update(piece)
            if last:
                yield last
            last = piece
        if digest.hexdigest() != self.sha256:
            raise self.damage("its sha256 is not the recorded one")
        if last:
            yield last

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """Bytes [start, stop) in pieces, unverified."""
        if start == stop:
            return
        try:
            yield from self._store.stream(self.key, start, stop)
        except (NotFound, RangeNotSatisfiable) as error:
            raise self.damage(error.message) from error


class _Ranges(io.RawIOBase):
    """Reads of a stored file by ranges."""

    def __init__(self, file: CheckedFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        count = max(0, min(len(buffer), self._file.size - self._at))
        if count:
            buffer[:count] = self._file.read(self._at, count)
            self._at += count
        return count


def digest_of(store: ArtifactStore, key: str) -> tuple[int, str]:
    """Size and sha256 of a stored file. Raises NotFound."""
    digest, size = hashlib.sha256(), 0
    for piece in store.stream(key):
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()
