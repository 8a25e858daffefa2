"""Rows of a dataset that was uploaded or lies under an allowed data root.

Hub datasets need the `datasets` library and are read by the worker alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from actograph.contract.errors import InvalidDataset, NotFound
from actograph.contract.specs import FileDataset, PathDataset
from actograph.dataset_rows import DatasetRow, RowReader, TextRow, bounded_lines, read_rows, read_texts
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
    with _lines(ref, store, data_roots) as lines:
        return read_rows(lines, limit=limit, offset=offset, require_gold=require_gold, reader=reader)


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
    with _lines(ref, store, data_roots) as lines:
        return read_texts(lines, field, limit=limit, offset=offset)


@contextmanager
def _lines(
    ref: FileDataset | PathDataset, store: ArtifactStore, data_roots: Sequence[str]
) -> Iterator[Iterator[bytes]]:
    if isinstance(ref, PathDataset):
        with allowed_path(ref.path, data_roots).open("rb") as file:
            yield bounded_lines(file)
        return
    yield bounded_lines(cast(BinaryIO, _ChunkReader(stream_upload(store, ref.file_id))))


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
