"""Rows of a dataset that was uploaded or is under an allowed data root.

Only workers read Hub datasets, with the `datasets` library.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from actograph.contract.errors import InvalidDataset, NotFound
from actograph.contract.specs import FileDataset, PathDataset
from actograph.datasets.dataset_formats import csv_records, format_of
from actograph.datasets.dataset_lines import Lines
from actograph.datasets.dataset_rows import (
    GSM8K_COLUMNS,
    DatasetRow,
    JsonRecords,
    RowReader,
    TextRow,
    stream_rows,
    stream_texts,
)
from actograph.datasets.parquet_process import ParquetProcess
from storage.artifacts.checked_files import CheckedFile
from storage.artifacts.store import STREAM_CHUNK, ArtifactStore
from storage.files import files
from storage.index.database import Database
from storage.index.ids import is_id


@dataclass(frozen=True)
class Uploads:
    """Uploaded files: their records in the index and their bytes in the store."""

    database: Database
    store: ArtifactStore

    def open(self, file_id: str) -> CheckedFile:
        """The bytes of a file; reads are verified. Raises InvalidDataset if there is no such file."""
        missing = InvalidDataset(f"no file {file_id}", param="dataset.file_id")
        if not is_id(file_id, "file"):
            raise missing
        try:
            with self.database.read() as session:
                row = files.get(session, file_id)
                chunks = files.chunks_of(session, file_id)
            self.store.size(f"files/{file_id}")
        except NotFound as error:
            raise missing from error
        file = files.stored(row, self.store, chunks)
        file.check_whole()
        return file


def read(
    ref: FileDataset | PathDataset,
    uploads: Uploads,
    data_roots: Sequence[str],
    *,
    limit: int | None = None,
    offset: int = 0,
    require_gold: bool = True,
    reader: RowReader | None = None,
) -> Iterator[DatasetRow]:
    """Rows `offset` to `offset + limit` of the dataset, checked and read one at a time.

    Raises:
        InvalidDataset: no such file, a path outside the data roots, or a bad row (named).
        StoreDamaged: an upload is not what was uploaded.
        ServiceBusy: other readers use all memory for decoding.
    """
    columns, required = (GSM8K_COLUMNS, GSM8K_COLUMNS) if reader is None else (reader.columns, ())
    with _records(ref, uploads, data_roots, columns, required) as records:
        yield from stream_rows(records, limit=limit, offset=offset, require_gold=require_gold, reader=reader)


@contextmanager
def read_records(
    ref: FileDataset, columns: Collection[str], required: Collection[str], uploads: Uploads
) -> Iterator[Iterable[object]]:
    """Records of an upload; a record that cannot be read is an `InvalidDataset`.

    Args:
        columns: columns that are decoded.
        required: columns that a CSV or Parquet file must have.
    """
    with _records(ref, uploads, (), columns, required) as records:
        yield records


def read_text_rows(
    ref: FileDataset | PathDataset,
    field: str,
    uploads: Uploads,
    data_roots: Sequence[str],
    *,
    limit: int | None = None,
    offset: int = 0,
) -> Iterator[TextRow]:
    """`field` of rows `offset` to `offset + limit` of the dataset; otherwise like `read`."""
    with _records(ref, uploads, data_roots, (field,), (field,)) as records:
        yield from stream_texts(records, field, limit=limit, offset=offset)


@contextmanager
def _records(
    ref: FileDataset | PathDataset,
    uploads: Uploads,
    data_roots: Sequence[str],
    columns: Collection[str],
    required: Collection[str],
) -> Iterator[Iterable[object]]:
    """The records of a dataset. Only `columns` of a Parquet file are decoded."""
    with _opened(ref, uploads, data_roots) as (file, written):
        if written == "parquet":
            yield ParquetProcess(file, columns, required)
        elif written == "csv":
            yield csv_records(Lines(file.stream()), required)
        else:
            yield JsonRecords(Lines(file.stream()))


@contextmanager
def _opened(
    ref: FileDataset | PathDataset, uploads: Uploads, data_roots: Sequence[str]
) -> Iterator[tuple["CheckedFile | LocalFile", str]]:
    if isinstance(ref, FileDataset):
        yield uploads.open(ref.file_id), ref.format or "jsonl"
        return
    with closing(LocalFile(allowed_path(ref.path, data_roots).open("rb"))) as file:
        yield file, ref.format or format_of(ref.path)


class LocalFile:
    """A file under a data root, for reads of ranges or of the whole stream."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size

    def read(self, start: int, length: int) -> bytes:
        """`length` bytes from `start`. Raises InvalidDataset if the file has become shorter."""
        self._file.seek(start)
        data = self._file.read(length)
        if len(data) != length:
            raise InvalidDataset("the file became shorter while it was read", param="dataset.path")
        return data

    def stream(self) -> Iterator[bytes]:
        while chunk := self._file.read(STREAM_CHUNK):
            yield chunk

    def close(self) -> None:
        self._file.close()


def allowed_path(path: str, data_roots: Sequence[str]) -> Path:
    """The file at `path`, with links followed, if it is under a data root.

    Raises:
        InvalidDataset: outside all roots, missing, or not a file. One message for all three reveals nothing
            about the server's disk.
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
