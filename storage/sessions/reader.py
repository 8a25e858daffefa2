"""Reads parts of a stored session by byte range, never a whole file."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Generic, TypeVar

from actograph import tensor_files
from actograph.contract.errors import NotFound, StoreDamaged
from actograph.contract.resources import SessionFile, TensorInfo
from actograph.tensor_files import TensorFileHeader
from storage.artifacts.checked_files import CheckedFile
from storage.artifacts.store import ArtifactStore
from storage.sessions.manifest import MANIFEST_NAME, SessionManifest, StoredTensor, TensorPart

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """Some rows of a tensor: `data` holds prod(shape) elements of `dtype` (a safetensors name)."""

    dtype: str
    shape: tuple[int, int]
    data: bytes


class DigestCache(Generic[T]):
    """Parts of files by the sha256 of their file, so that an entry can never be out of date.

    Bounded by the number of tensors that the entries describe: roughly 300 bytes each for a header, and
    about a kilobyte for a manifest.
    """

    def __init__(self, max_tensors: int = 100_000) -> None:
        self._max_tensors = max_tensors
        self._tensors = 0
        self._entries: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: str) -> T | None:
        with self._lock:
            found = self._entries.get(digest)
            if found is None:
                return None
            self._entries.move_to_end(digest)
            return found[0]

    def put(self, digest: str, value: T, tensors: int) -> None:
        """Keep `value`, which describes so many tensors."""
        with self._lock:
            if digest in self._entries:
                return
            self._entries[digest] = (value, tensors)
            self._tensors += tensors
            while self._tensors > self._max_tensors and len(self._entries) > 1:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._tensors -= dropped


#: digests that take as much memory as a tensor's description
_DIGESTS_PER_TENSOR = 8

_shared_headers: DigestCache[TensorFileHeader] = DigestCache()
_shared_manifests: DigestCache[SessionManifest] = DigestCache(20_000)


class SessionReader:
    """One stored session. Safe for use from many threads.

    Every method raises NotFound where there is no such session or hook and StoreDamaged where a file is
    missing, short or not what the manifest says.
    """

    def __init__(
        self,
        store: ArtifactStore,
        session_id: str,
        *,
        recorded: SessionFile | None = None,
        headers: DigestCache[TensorFileHeader] = _shared_headers,
        manifests: DigestCache[SessionManifest] = _shared_manifests,
    ) -> None:
        """`recorded` is the manifest file as the index has it: it is then read once and kept."""
        self.session_id = session_id
        self._store = store
        self._recorded = recorded
        self._headers = headers
        self._manifests = manifests

    @cached_property
    def manifest(self) -> SessionManifest:
        recorded, key = self._recorded, self._key(MANIFEST_NAME)
        if recorded is None:
            return self._decoded(b"".join(self._store.stream(key)))
        kept = self._manifests.get(recorded.sha256)
        if kept is None:
            file = CheckedFile(self._store, key, size=recorded.bytes, sha256=recorded.sha256)
            try:
                kept = self._decoded(b"".join(file.stream()))
            except StoreDamaged as error:
                if isinstance(error.__cause__, NotFound):
                    raise error.__cause__ from None
                raise
            digests = sum(len(chunks.sha256) for chunks in kept.chunks.values())
            self._manifests.put(recorded.sha256, kept, len(kept.tensors) + digests // _DIGESTS_PER_TENSOR)
        return kept

    def _decoded(self, data: bytes) -> SessionManifest:
        with self._damage(MANIFEST_NAME):
            manifest = SessionManifest.decode(data)
            if manifest.session_id != self.session_id:
                raise StoreDamaged(f"it is the manifest of session {manifest.session_id}")
        return manifest

    def tensor_info(self, hook: str) -> TensorInfo:
        stored = self._stored(hook)
        return TensorInfo(
            shape=list(stored.shape),
            dtype=stored.dtype,
            first_row=stored.first_row,
            position_offset=stored.position_offset,
            summary=stored.summary,
            over=stored.over,
            nbytes=stored.nbytes,
        )

    def tokens_of_rows(self, hook: str) -> Sequence[int]:
        """The token of every row of a hook's tensor, ascending; of a summary, all that it sums up."""
        stored = self._stored(hook)
        count = stored.shape[0] if stored.over is None else stored.over
        if stored.position_offset is None:
            return range(stored.first_row, stored.first_row + count)
        tokens = self.row_positions()[stored.position_offset :][:count]
        if len(tokens) != count:
            raise StoreDamaged(f"{hook}: row_positions does not name the tokens of all its rows")
        return tokens

    def rows(self, hook: str, start: int, stop: int) -> TensorSlice:
        """Rows [start, stop) of a hook's tensor; row 0 is token `first_row`.

        Raises:
            RangeNotSatisfiable: the tensor does not have all these rows.
        """
        stored = self._stored(hook)
        rows, width = stored.shape
        tensor_files.check_rows(start, stop, rows)
        pieces = []
        for index, low, high in tensor_files.overlaps([(p.start, p.stop) for p in stored.parts], start, stop):
            part = stored.parts[index]
            pieces.append(self._read(part, (part.stop - part.start, width), stored.dtype, low, high))
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(data) != (stop - start) * width * tensor_files.itemsize(stored.dtype):
            raise StoreDamaged(f"{hook}: the manifest's parts do not cover rows {start}:{stop}")
        return TensorSlice(stored.dtype, (stop - start, width), data)

    def token_ids(self) -> list[int]:
        """The P + G token ids of prompt and generation."""
        part = self.manifest.token_ids
        if part is None:
            raise StoreDamaged(f"the manifest of session {self.session_id} does not place its token ids")
        return self._numbers(part, self.manifest.num_tokens)

    def row_positions(self) -> list[int]:
        """The tokens of rows that were chosen one by one, which tensors' `position_offset` points into.

        Raises:
            NotFound: the session's rows are consecutive; `first_row` alone tells their tokens.
        """
        part = self.manifest.row_positions
        if part is None:
            raise NotFound(f"session {self.session_id} has no row_positions: its rows are consecutive tokens")
        return self._numbers(part, part.stop - part.start)

    def _numbers(self, part: TensorPart, count: int) -> list[int]:
        data = self._read(part, (count,), "I64", 0, count)
        numbers: list[int] = tensor_files.raw_array("I64", (count,), data).tolist()
        return numbers

    def verify(self) -> None:
        """Read every file once and compare size, sha256 and header with the manifest.

        Raises:
            StoreDamaged: names every file at fault and why.
        """
        problems = []
        for file in self.manifest.files:
            digest, size = sha256(), 0
            try:
                for chunk in self._store.stream(self._key(file.name)):
                    digest.update(chunk)
                    size += len(chunk)
            except NotFound:
                problems.append(f"{file.name} is missing")
                continue
            if size != file.bytes:
                problems.append(f"{file.name} has {size} bytes instead of {file.bytes}")
            elif digest.hexdigest() != file.sha256:
                problems.append(f"{file.name} does not have the sha256 of the manifest")
        if not problems:
            try:
                self._verify_places()
            except StoreDamaged as error:
                problems.append(error.message)
        if problems:
            raise StoreDamaged(f"session {self.session_id}: {'; '.join(problems)}")

    def _verify_places(self) -> None:
        """Every tensor is where the manifest says, with no row missing."""
        for hook, stored in self.manifest.tensors.items():
            rows, width = stored.shape
            end = 0
            for part in stored.parts:
                if part.start != end:
                    raise StoreDamaged(f"{hook}: row {end} is missing")
                end = part.stop
                self._read(part, (part.stop - part.start, width), stored.dtype, 0, 0)
            if end != rows:
                raise StoreDamaged(f"{hook}: {end} of {rows} rows are stored")
            self.tokens_of_rows(hook)
        self.token_ids()

    def _stored(self, hook: str) -> StoredTensor:
        try:
            return self.manifest.tensors[hook]
        except KeyError:
            have = ", ".join(list(self.manifest.tensors)[:8])
            raise NotFound(f"session {self.session_id} has no tensor {hook}; it has {have}") from None

    def _read(self, part: TensorPart, shape: tuple[int, ...], dtype: str, start: int, stop: int) -> bytes:
        with self._damage(part.file):
            header = self._header(part.file)
            entry = header.entry(part.name)
            if (entry.shape, entry.dtype) != (shape, dtype):
                raise StoreDamaged(
                    f"{part.file}: {part.name} is {entry.dtype} {list(entry.shape)}, "
                    f"the manifest says {dtype} {list(shape)}"
                )
            offset, length = tensor_files.row_range(header, part.name, start, stop)
            return self.file(part.file).read(offset, length) if length else b""

    def _header(self, name: str) -> TensorFileHeader:
        file = self._file(name)
        header = self._headers.get(file.sha256)
        if header is None:
            header = tensor_files.read_header(self.file(name).read, file.bytes)
            self._headers.put(file.sha256, header, len(header.tensors))
        return header

    def file(self, name: str) -> CheckedFile:
        """A file of the session, to be read and verified against the manifest."""
        file = self._file(name)
        chunks = self.manifest.chunks.get(name)
        return CheckedFile(self._store, self._key(name), size=file.bytes, sha256=file.sha256, chunks=chunks)

    def _file(self, name: str) -> SessionFile:
        for file in self.manifest.files:
            if file.name == name:
                return file
        raise StoreDamaged(f"the manifest of session {self.session_id} does not list {name}")

    @contextmanager
    def _damage(self, name: str) -> Iterator[None]:
        """Name the session and the file in errors about the content of a file."""
        try:
            yield
        except (NotFound, StoreDamaged) as error:
            if isinstance(error, StoreDamaged) and error.artifact is not None:
                raise
            message = f"session {self.session_id}, {name}: {error.message}"
            raise StoreDamaged(message, artifact=self.session_id, file=name) from error

    def _key(self, name: str) -> str:
        return f"sessions/{self.session_id}/{name}"
