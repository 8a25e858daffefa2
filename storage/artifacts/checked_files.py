"""Reads of stored files that verify every byte against digests recorded when the file was written.

A file larger than one chunk has a list of chunk digests, so that a range is verified by reading the chunks
around it and nothing else. A smaller file is its own chunk: its sha256 is enough.
"""

import hashlib
import io
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field

from actograph.contract.errors import NotFound, RangeNotSatisfiable, StoreDamaged
from storage.artifacts.store import STREAM_CHUNK, ArtifactStore

#: A slice of ten rows reads one or two chunks, and hashing them costs a fraction of a millisecond.
SESSION_CHUNK_BYTES = 128 << 10
UPLOAD_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20


class ChunkDigests(BaseModel):
    """sha256 of each consecutive chunk of `bytes` bytes of a file; the last chunk may be shorter."""

    model_config = ConfigDict(frozen=True)

    bytes: int = Field(gt=0, description="Size of a chunk.")
    sha256: list[str]


class ChunkHasher:
    """Computes the digests of a file's chunks from pieces of any size."""

    def __init__(self, chunk_bytes: int) -> None:
        self.size = 0
        self._chunk_bytes = chunk_bytes
        self._chunk = hashlib.sha256()
        self._chunks: list[str] = []

    def update(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            room = self._chunk_bytes - self.size % self._chunk_bytes
            piece, view = view[:room], view[room:]
            self._chunk.update(piece)
            self.size += len(piece)
            if len(piece) == room:
                self._chunks.append(self._chunk.hexdigest())
                self._chunk = hashlib.sha256()

    def passing(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Hash pieces and pass them on."""
        for piece in pieces:
            self.update(piece)
            yield piece

    @property
    def chunks(self) -> ChunkDigests | None:
        """None if the file fits into one chunk: the file's own sha256 is its digest."""
        if self.size <= self._chunk_bytes:
            return None
        last = [self._chunk.hexdigest()] if self.size % self._chunk_bytes else []
        return ChunkDigests(bytes=self._chunk_bytes, sha256=self._chunks + last)


class FileHasher(ChunkHasher):
    """Computes the digests of a file and of its chunks in one pass."""

    def __init__(self, chunk_bytes: int) -> None:
        super().__init__(chunk_bytes)
        self._whole = hashlib.sha256()

    def update(self, data: bytes | memoryview) -> None:
        self._whole.update(data)
        super().update(data)

    @property
    def sha256(self) -> str:
        return self._whole.hexdigest()


class CheckedFile:
    """A stored file whose bytes are verified before they are returned.

    Every method raises StoreDamaged, naming the artifact and the file, if the file is missing, has another
    size, or a byte differs. Ranges of a large file without chunk digests, written by an earlier version,
    cannot be verified; `stream` verifies such a file if it is read whole.
    """

    def __init__(
        self,
        store: ArtifactStore,
        key: str,
        *,
        size: int,
        sha256: str,
        chunks: ChunkDigests | None = None,
    ) -> None:
        self.key = key
        self.size = size
        self._store = store
        self._sha256 = sha256
        if chunks is None and size <= SESSION_CHUNK_BYTES:
            chunks = ChunkDigests(bytes=max(1, size), sha256=[sha256] if size else [])
        elif chunks is None and size <= UPLOAD_CHUNK_BYTES and key.startswith("files/"):
            chunks = ChunkDigests(bytes=size, sha256=[sha256])
        if chunks is not None and len(chunks.sha256) != -(-size // chunks.bytes):
            raise self.damage(f"{len(chunks.sha256)} chunk digests are recorded for {size} bytes")
        self._chunks = chunks

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

    def check_whole(self) -> None:
        """Verify a file without chunk digests as a whole. Other files are verified when they are read."""
        self.check_size()
        if self._chunks is None:
            for _ in self._stream_whole():
                pass

    def check_size(self) -> None:
        """Compare the size in the store with the recorded one."""
        try:
            found = self._store.size(self.key)
        except NotFound:
            raise self.damage("it is missing") from None
        if found != self.size:
            raise self.damage(f"it has {found} bytes, {self.size} were written")

    def read(self, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start`."""
        if self._chunks is None or not length:
            return self._fetch(start, length)
        low, high = self._around(start, start + length)
        data = self._fetch(low, high - low)
        self._verify(low, data)
        return data if len(data) == length else data[start - low : start - low + length]

    def open(self) -> BinaryIO:
        """The file as a seekable stream."""
        return io.BufferedReader(_Ranges(self), _BLOCK_BYTES)

    def stream(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Bytes [start, stop) in pieces. A damaged piece is never returned.

        A whole file without chunk digests is verified before its last piece is returned.
        """
        stop = self.size if stop is None else stop
        if start == stop:
            return
        if self._chunks is not None:
            yield from self._stream_chunks(self._chunks, start, stop)
        elif (start, stop) == (0, self.size):
            yield from self._stream_whole()
        else:
            yield from self._pieces(start, stop)

    def _stream_chunks(self, chunks: ChunkDigests, start: int, stop: int) -> Iterator[bytes]:
        low, high = self._around(start, stop)
        step = max(1, STREAM_CHUNK // chunks.bytes) * chunks.bytes
        at, held = low, bytearray()
        for piece in self._pieces(low, high, step):
            held += piece
            while len(held) >= step or (held and at + len(held) == high):
                data = bytes(held[:step])
                del held[:step]
                self._verify(at, data)
                yield data[max(0, start - at) : stop - at]
                at += len(data)

    def _stream_whole(self) -> Iterator[bytes]:
        digest, last = hashlib.sha256(), b""
        for piece in self._pieces(0, self.size):
            digest.update(piece)
            if last:
                yield last
            last = piece
        if digest.hexdigest() != self._sha256:
            raise self.damage("its sha256 is not the recorded one")
        yield last

    def _around(self, start: int, stop: int) -> tuple[int, int]:
        """The range of whole chunks around [start, stop)."""
        assert self._chunks is not None
        size = self._chunks.bytes
        return start // size * size, min(self.size, -(-stop // size) * size)

    def _verify(self, start: int, data: bytes) -> None:
        """Compare whole chunks, the first at `start`, with their digests."""
        assert self._chunks is not None
        size, view = self._chunks.bytes, memoryview(data)
        for offset in range(0, len(data), size):
            recorded = self._chunks.sha256[(start + offset) // size]
            if hashlib.sha256(view[offset : offset + size]).hexdigest() != recorded:
                end = start + min(offset + size, len(data))
                raise self.damage(f"bytes {start + offset} to {end} do not match their sha256")

    def _fetch(self, start: int, length: int) -> bytes:
        try:
            return self._store.read(self.key, start, length)
        except (NotFound, RangeNotSatisfiable) as error:
            raise self.damage(error.message) from error

    def _pieces(self, start: int, stop: int, chunk: int = STREAM_CHUNK) -> Iterator[bytes]:
        try:
            yield from self._store.stream(self.key, start, stop, chunk)
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
        buffer[:count] = self._file.read(self._at, count)
        self._at += count
        return count


def hash_file(file: Any, chunk_bytes: int) -> FileHasher:
    """Hash an open binary file from its beginning to its end."""
    file.seek(0)
    hasher, buffer = FileHasher(chunk_bytes), bytearray(STREAM_CHUNK)
    view = memoryview(buffer)
    while count := file.readinto(buffer):
        hasher.update(view[:count])
    return hasher


def digest_of(store: ArtifactStore, key: str) -> tuple[int, str]:
    """Size and sha256 of a stored file. Raises NotFound."""
    digest, size = hashlib.sha256(), 0
    for piece in store.stream(key):
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()
