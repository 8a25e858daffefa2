"""Rows of a dataset that was uploaded or lies under an allowed data root.

Hub datasets need the `datasets` library and are read by the worker alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

from actograph.contract.errors import InvalidDataset, NotFound
from actograph.contract.specs import FileDataset, PathDataset
from actograph.dataset_formats import ParquetRecords, csv_records, format_of
from actograph.dataset_rows import (
    GSM8K_COLUMNS,
    DatasetRow,
    RowReader,
    TextRow,
    bounded_lines,
    check_rows,
    check_texts,
    read_rows,
    read_texts,
)
from storage.artifacts.store import ArtifactStore
from storage.ids import is_id


def read(
    ref: FileDataset | PathDataset,
    store: ArtifactStore,
    data_roots: Sequence[str],
    *,
    limit: int | None = None,
    offset: int = 0,
    require_gold: bool = True,
    reader: RowReader | None = None,
) -> list[DatasetRow]:
    """Rows `offset` to `offset + limit` of the dataset, checked.

    Raises:
        InvalidDataset: no such file, a path outside the data roots, or a bad row (named).
    """
    options: dict[str, Any] = {
        "limit": limit, "offset": offset, "require_gold": require_gold, "reader": reader,
    }  # fmt: skip
    columns = GSM8K_COLUMNS if reader is None else None
    with _rows(ref, store, data_roots, columns) as (lines, records):
        if records is not None:
            return check_rows(records, **options)
        return read_rows(lines, **options)


def read_text_rows(
    ref: FileDataset | PathDataset,
    field: str,
    store: ArtifactStore,
    data_roots: Sequence[str],
    *,
    limit: int | None = None,
    offset: int = 0,
) -> list[TextRow]:
    """`field` of rows `offset` to `offset + limit` of the dataset, checked.

    Raises:
        InvalidDataset: no such file, a path outside the data roots, or a bad row (named).
    """
    with _rows(ref, store, data_roots, (field,)) as (lines, records):
        if records is not None:
            return check_texts(records, field, limit=limit, offset=offset)
        return read_texts(lines, field, limit=limit, offset=offset)


@contextmanager
def _rows(
    ref: FileDataset | PathDataset,
    store: ArtifactStore,
    data_roots: Sequence[str],
    columns: Sequence[str] | None,
) -> Iterator[tuple[Iterator[bytes], Iterable[object] | None]]:
    """Lines of JSON and None, or no lines and records; `columns` are needed, and no others."""
    with ExitStack() as opened:
        if isinstance(ref, PathDataset):
            path = allowed_path(ref.path, data_roots)
            written = ref.format or format_of(ref.path)
            file: BinaryIO = opened.enter_context(path.open("rb"))
        else:
            written = ref.format or "jsonl"
            chunks = stream_upload(store, ref.file_id)
            if written == "parquet":
                stored = StoredFile(store, f"files/{ref.file_id}")
                file = opened.enter_context(BufferedReader(stored, StoredFile.BLOCK))
            else:
                file = cast(BinaryIO, _ChunkReader(chunks))
        if written == "parquet":
            yield iter(()), ParquetRecords(file, columns)
        elif written == "csv":
            yield iter(()), csv_records(bounded_lines(file), columns)
        else:
            yield bounded_lines(file), None


class StoredFile(RawIOBase):
    """An uploaded file that can be sought in, read by ranges."""

    BLOCK = 1 << 20

    def __init__(self, store: ArtifactStore, key: str) -> None:
        self._store = store
        self._key = key
        self._size = store.size(key)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        start = {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        count = max(0, min(len(buffer), self._size - self._at))
        if count:
            buffer[:count] = self._store.read(self._key, self._at, count)
            self._at += count
        return count


def stream_upload(store: ArtifactStore, file_id: str) -> Iterable[bytes]:
    """The bytes of an uploaded file, piece by piece.

    Raises:
        InvalidDataset: there is none.
    """
    key = f"files/{file_id}"
    if not is_id(file_id, "file"):
        raise InvalidDataset(f"no file {file_id}", param="dataset.file_id")
    try:
        store.size(key)
    except NotFound as error:
        raise InvalidDataset(f"no file {file_id}", param="dataset.file_id") from error
    return store.stream(key)


def allowed_path(path: str, data_roots: Sequence[str]) -> Path:
    """The file that `path` names, links followed, if a data root holds it.

    The message is the same for a path outside and for one that does not exist, so that it
    tells nothing about the server's disk.

    Raises:
        InvalidDataset: outside every root, missing, or not a file.
    """
    refusal = InvalidDataset(
        f"{path}: no such file under the server's data roots (ACTOGRAPH_DATA_ROOTS)", param="dataset.path"
    )
    if "\0" in path:
        raise refusal
    roots = [Path(root).resolve() for root in data_roots]
    given = Path(path)
    candidates = [given] if given.is_absolute() else [root / given for root in roots]
    for candidate in candidates:
        try:
            resolved = candidate.resolve(strict=True)
        except (OSError, RuntimeError):
            continue
        if resolved.is_file() and any(resolved.is_relative_to(root) for root in roots):
            return resolved
    raise refusal


class _ChunkReader:
    """`readline` over pieces of bytes, as `bounded_lines` asks for."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._buffer = bytearray()
        self._ended = False

    def readline(self, limit: int) -> bytes:
        searched = 0
        while True:
            end = self._buffer.find(b"\n", searched, limit)
            if end >= 0:
                return self._take(end + 1)
            if len(self._buffer) >= limit or self._ended:
                return self._take(min(limit, len(self._buffer)))
            searched = len(self._buffer)
            chunk = next(self._chunks, None)
            if chunk is None:
                self._ended = True
            else:
                self._buffer += chunk

    def _take(self, count: int) -> bytes:
        line = bytes(self._buffer[:count])
        del self._buffer[:count]
        return line
