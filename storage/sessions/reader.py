"""Reads parts of a stored session by byte range, never a whole file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from actograph import dtypes, tensor_files
from actograph.contract.errors import NotFound, StoreDamaged
from actograph.contract.hooks import not_stored
from actograph.contract.resources import SessionFile, TensorInfo
from actograph.contract.saes import part_names
from actograph.latents import dense, latents_info
from actograph.tensor_files import TensorEntry, TensorFileHeader
from storage.artifacts.checked_files import CheckedFile, digest_of
from storage.artifacts.store import ArtifactStore
from storage.sessions.manifest import MANIFEST_NAME, SessionManifest, StoredTensor, TensorPart

#: readers that `open_session` keeps; one takes about 3 KB for each tensor of its session
_KEPT_READERS = 64


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """Some rows of a tensor: `data` holds prod(shape) elements of `dtype` (a safetensors name)."""

    dtype: str
    shape: tuple[int, int]
    data: bytes


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """Rows [start, stop) of a tensor, from a byte of a file on."""

    start: int
    stop: int
    file: CheckedFile
    offset: int


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The places of a tensor's rows. It takes little memory, and needs neither manifest nor header.

    Attributes:
        dtype: in which rows are read; `stored`: in which they are stored.
        scales: of rows that have one each.
        parts: of latents, their indices and values, from which the rows are made.
    """

    stored: str
    width: int
    pieces: tuple[TensorPiece, ...]
    scales: tuple[TensorPiece, ...] = ()
    parts: "tuple[TensorLayout, TensorLayout] | None" = None

    @property
    def dtype(self) -> str:
        return dtypes.read_as(self.stored)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it is stored."""
        return dtypes.row_bytes(dtypes.DTYPES[self.stored], self.width)

    def rows(self, start: int, stop: int) -> TensorSlice:
        """Rows [start, stop), which exist. Raises StoreDamaged."""
        if self.parts is not None:
            return _all_latents(*(part.rows(start, stop) for part in self.parts), width=self.width)
        data = _read_pieces(self.pieces, self.width * tensor_files.itemsize(self.stored), start, stop)
        if self.scales:
            scales = _read_pieces(self.scales, dtypes.SCALE_BYTES, start, stop)
            data = dtypes.unscaled_bytes(data, scales, self.width)
        return TensorSlice(self.dtype, (stop - start, self.width), data)


def _read_pieces(pieces: Sequence[TensorPiece], row_bytes: int, start: int, stop: int) -> bytes:
    found = [
        piece.file.read(piece.offset + (low - piece.start) * row_bytes, (high - low) * row_bytes)
        for piece in pieces
        if (low := max(start, piece.start)) < (high := min(stop, piece.stop))
    ]
    return found[0] if len(found) == 1 else b"".join(found)


def _tensors_of(stored: StoredTensor) -> list[tuple[Sequence[TensorPart], str, int]]:
    """Parts, dtype and width of the tensors in the files: the rows, and their scales if they have any."""
    found: list[tuple[Sequence[TensorPart], str, int]] = [(stored.parts, stored.dtype, stored.shape[1])]
    if dtypes.DTYPES[stored.dtype].has_scales:
        found.append((stored.scales, "F32", 1))
    return found


class SessionReader:
    """One stored session. Safe for use from many threads.

    Latents have two tensors, and a third name: rows of `sae:NAME` are made of these (`actograph.latents`).

    Every method raises NotFound if there is no such session or hook, and StoreDamaged if a file is missing,
    short or contradicts the manifest.
    """

    def __init__(self, store: ArtifactStore, session_id: str, *, recorded: SessionFile | None = None) -> None:
        """`recorded`: the manifest file as the index has it; the manifest is then verified."""
        self.session_id = session_id
        self._store = store
        self._recorded = recorded
        self._manifest: SessionManifest | None = None
        self._headers: dict[str, TensorFileHeader] = {}

    @property
    def manifest(self) -> SessionManifest:
        # not a `cached_property`: before Python 3.12 it lets one reader at a time read its manifest
        if self._manifest is None:
            self._manifest = self._read_manifest()
        return self._manifest

    def _read_manifest(self) -> SessionManifest:
        recorded, key = self._recorded, self._key(MANIFEST_NAME)
        if recorded is None:
            return self._decoded(b"".join(self._store.stream(key)))
        file = CheckedFile(self._store, key, size=recorded.bytes, sha256=recorded.sha256)
        try:
            return self._decoded(b"".join(file.stream()))
        except StoreDamaged as error:
            if isinstance(error.__cause__, NotFound):
                raise error.__cause__ from None
            raise

    def _decoded(self, data: bytes) -> SessionManifest:
        with self._damage(MANIFEST_NAME):
            manifest = SessionManifest.decode(data)
            if manifest.session_id != self.session_id:
                raise StoreDamaged(f"it is the manifest of session {manifest.session_id}")
        return manifest

    def tensor_info(self, hook: str) -> TensorInfo:
        return self._latents(hook) or self._stored(hook)

    def _latents(self, hook: str) -> TensorInfo | None:
        """The form of all latents of an SAE; None if this is the name of a tensor, or of nothing."""
        tensors = self.manifest.tensors
        return None if hook in tensors else latents_info(hook, tensors)

    def tokens_of_rows(self, hook: str) -> Sequence[int]:
        """The token of every row of a hook's tensor, ascending; for a summary, all tokens that it reduces."""
        stored = self._latents(hook) or self._stored(hook)
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
        if (latents := self._latents(hook)) is not None:
            indices, values = (self.rows(part, start, stop) for part in part_names(hook))
            return _all_latents(indices, values, width=latents.shape[1])
        stored = self._stored(hook)
        rows, width = stored.shape
        tensor_files.check_rows(start, stop, rows)
        data = self._rows(hook, stored.parts, stored.dtype, width, start, stop)
        if dtypes.DTYPES[stored.dtype].has_scales:
            data = dtypes.unscaled_bytes(data, self._rows(hook, stored.scales, "F32", 1, start, stop), width)
        return TensorSlice(dtypes.read_as(stored.dtype), (stop - start, width), data)

    def _rows(self, hook: str, parts: Sequence[TensorPart], dtype: str, width: int, *rows: int) -> bytes:
        """Rows [start, stop) of the parts of a tensor, as they are stored."""
        start, stop = rows
        pieces = []
        for index, low, high in tensor_files.overlaps([(p.start, p.stop) for p in parts], start, stop):
            part = parts[index]
            pieces.append(self._read(part, (part.stop - part.start, width), dtype, low, high))
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(data) != (stop - start) * width * tensor_files.itemsize(dtype):
            raise StoreDamaged(f"{hook}: the manifest's parts do not cover rows {start}:{stop}")
        return data

    def layout(self, hook: str) -> "TensorLayout":
        """The places of a tensor's rows in its files, whose headers and sizes are checked."""
        if (latents := self._latents(hook)) is not None:
            indices, values = (self.layout(part) for part in part_names(hook))
            return TensorLayout(latents.dtype, latents.shape[1], (), parts=(indices, values))
        stored = self._stored(hook)
        placed: list[tuple[TensorPiece, ...]] = []
        for parts, dtype, width in _tensors_of(stored):
            pieces = []
            for part in self._whole(hook, parts, stored.shape[0]):
                shape = (part.stop - part.start, width)
                entry, file = self._entry(part, shape, dtype), self.file(part.file)
                file.check_size()
                pieces.append(TensorPiece(part.start, part.stop, file, entry.byte_range(0, shape[0])[0]))
            placed.append(tuple(pieces))
        scales = placed[1] if len(placed) > 1 else ()
        return TensorLayout(stored.dtype, stored.shape[1], placed[0], scales)

    @staticmethod
    def _whole(hook: str, parts: Sequence[TensorPart], rows: int) -> Sequence[TensorPart]:
        """The parts of a tensor, which cover all its rows. Raises StoreDamaged."""
        end = 0
        for part in parts:
            if part.start != end:
                raise StoreDamaged(f"{hook}: row {end} is missing")
            end = part.stop
        if end != rows:
            raise StoreDamaged(f"{hook}: {end} of {rows} rows are stored")
        return parts

    def token_ids(self) -> list[int]:
        """The P + G token ids of prompt and generation; none for the results of an analysis."""
        part = self.manifest.token_ids
        if not self.manifest.num_tokens:
            return []
        if part is None:
            raise StoreDamaged(f"the manifest of session {self.session_id} does not place its token ids")
        return self._numbers(part, self.manifest.num_tokens)

    def row_positions(self) -> list[int]:
        """The tokens of individually selected rows. `position_offset` of a tensor points into them.

        Raises:
            NotFound: the session's rows are consecutive, beginning at `first_row`.
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
            StoreDamaged: names every damaged file and the reason.
        """
        problems = []
        for file in self.manifest.files:
            try:
                size, digest = digest_of(self._store, self._key(file.name))
            except NotFound:
                problems.append(f"{file.name} is missing")
                continue
            if size != file.bytes:
                problems.append(f"{file.name} has {size} bytes instead of {file.bytes}")
            elif digest != file.sha256:
                problems.append(f"{file.name} does not have the sha256 of the manifest")
        if not problems:
            try:
                self._verify_places()
            except StoreDamaged as error:
                problems.append(error.message)
        if problems:
            raise StoreDamaged(f"session {self.session_id}: {'; '.join(problems)}")

    def _verify_places(self) -> None:
        """Check that the parts of each tensor are in their files and cover all its rows."""
        for hook, stored in self.manifest.tensors.items():
            for parts, dtype, width in _tensors_of(stored):
                for part in self._whole(hook, parts, stored.shape[0]):
                    self._read(part, (part.stop - part.start, width), dtype, 0, 0)
            self.tokens_of_rows(hook)
        self.token_ids()

    def _stored(self, hook: str) -> StoredTensor:
        try:
            return self.manifest.tensors[hook]
        except KeyError:
            fault = not_stored(hook, self.manifest.tensors)
            raise NotFound(f"session {self.session_id}: {fault}") from None

    def _read(self, part: TensorPart, shape: tuple[int, ...], dtype: str, start: int, stop: int) -> bytes:
        entry = self._entry(part, shape, dtype)
        with self._damage(part.file):
            offset, length = entry.byte_range(start, stop)
            return self.file(part.file).read(offset, length) if length else b""

    def _entry(self, part: TensorPart, shape: tuple[int, ...], dtype: str) -> TensorEntry:
        with self._damage(part.file):
            entry = self._header(part.file).entry(part.name)
            if (entry.shape, entry.dtype) != (shape, dtype):
                raise StoreDamaged(
                    f"{part.file}: {part.name} is {entry.dtype} {list(entry.shape)}, "
                    f"the manifest says {dtype} {list(shape)}"
                )
            return entry

    def _header(self, name: str) -> TensorFileHeader:
        header = self._headers.get(name)
        if header is None:
            header = tensor_files.read_header(self.file(name).read, self._file(name).bytes)
            self._headers[name] = header
        return header

    def file(self, name: str) -> CheckedFile:
        """A file of the session, as the manifest describes it."""
        file = self._file(name)
        return CheckedFile(self._store, self._key(name), size=file.bytes, sha256=file.sha256)

    def _file(self, name: str) -> SessionFile:
        for file in self.manifest.files:
            if file.name == name:
                return file
        raise StoreDamaged(f"the manifest of session {self.session_id} does not list {name}")

    @contextmanager
    def _damage(self, name: str) -> Iterator[None]:
        """Add the session and the file to errors about the content of a file."""
        try:
            yield
        except (NotFound, StoreDamaged) as error:
            if isinstance(error, StoreDamaged) and error.artifact is not None:
                raise
            message = f"session {self.session_id}, {name}: {error.message}"
            raise StoreDamaged(message, artifact=self.session_id, file=name) from error

    def _key(self, name: str) -> str:
        return f"sessions/{self.session_id}/{name}"


def _all_latents(indices: TensorSlice, values: TensorSlice, *, width: int) -> TensorSlice:
    """All latents of rows. Raises StoreDamaged for numbers that the SAE does not have."""
    numbers, activations = (
        tensor_files.value_array(one.dtype, one.shape, one.data) for one in (indices, values)
    )
    if numbers.size and not -1 <= numbers.min() <= numbers.max() < width:
        raise StoreDamaged(f"latents {numbers.min()} to {numbers.max()} are stored of {width}")
    made = dense(numbers, activations, width)
    return TensorSlice("F32", (len(made), width), made.tobytes())


@lru_cache(_KEPT_READERS)
def open_session(store: ArtifactStore, session_id: str, recorded: SessionFile) -> SessionReader:
    """A reader that is kept with its manifest and headers, for requests that read many parts of a session.

    Opening a session of 100 tensors anew takes 1 ms from a disk and two requests to S3.
    """
    return SessionReader(store, session_id, recorded=recorded)
