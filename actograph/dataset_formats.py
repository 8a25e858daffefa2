"""CSV and Parquet datasets as records, one mapping per row; JSONL is read by `dataset_rows` itself.

A record that is an `InvalidDataset` says why its row cannot be read, so that `check_rows` and
`check_texts` name the row. Memory is bounded by one record of a CSV file, and by the pages of one row group
and one row of a Parquet file.
"""

import csv
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from actograph.contract.errors import InvalidDataset
from actograph.contract.specs import DatasetFormat
from actograph.dataset_rows import MAX_LINE_BYTES

#: a row group that takes more uncompressed is refused, and one of more rows: they may be in the way of others
MAX_ROW_GROUP_BYTES = 1 << 30
MAX_ROW_GROUP_ROWS = 1 << 21
#: what one reading decodes, the rows before the first one in its row group included
MAX_DECODED_BYTES = 4 << 30
_MAX_COLUMNS = 10_000

# The module's own limit holds for the whole process; without it fields end at 131,072 characters.
csv.field_size_limit(MAX_LINE_BYTES)


def format_of(filename: str) -> DatasetFormat:
    """By the end of a file's name; what is neither .csv nor .parquet is JSONL."""
    match PurePosixPath(filename).suffix.lower():
        case ".csv":
            return "csv"
        case ".parquet":
            return "parquet"
    return "jsonl"


def csv_records(lines: Iterable[bytes], columns: Collection[str] | None = None) -> Iterator[object]:
    """Rows of a CSV file (RFC 4180, UTF-8) by the names in its first line; every value is a text.

    Blank lines do not count. Where quotes are broken the rest cannot be told apart and is not read.

    Args:
        columns: that the file must have; None asks for none.

    Raises:
        InvalidDataset: the first line cannot be read, does not name each column once, or lacks one.
    """
    text = _Text(lines)
    reader = csv.reader(text, strict=True)
    names: list[str] | None = None
    while True:
        text.start_record()
        try:
            values = next(reader, None)
        except (csv.Error, InvalidDataset) as error:
            reason = error.message if isinstance(error, InvalidDataset) else f"not CSV: {error}"
            broken = InvalidDataset(f"{reason} (line {text.line})", param="dataset")
            if names is None:
                raise broken from None
            yield broken
            return
        if values is None:
            return
        if not values:
            continue
        if names is None:
            names = _column_names(values)
            _require(columns, names)
        elif len(values) != len(names):
            yield InvalidDataset(
                f"has {len(values)} values where the first line names {len(names)} columns (line {text.line})"
            )
        else:
            yield dict(zip(names, values, strict=True))


def _column_names(values: list[str]) -> list[str]:
    names = [name.strip() for name in values]
    unnamed = [str(place) for place, name in enumerate(names, start=1) if not name]
    if unnamed:
        raise InvalidDataset(f"column {unnamed[0]} has no name in the first line", param="dataset")
    twice = sorted({name for name in names if names.count(name) > 1}) if len(names) <= _MAX_COLUMNS else []
    if twice or len(names) > _MAX_COLUMNS:
        reason = f"names {twice[0]} twice" if twice else f"names more than {_MAX_COLUMNS} columns"
        raise InvalidDataset(f"the first line {reason}", param="dataset")
    return names


def _require(columns: Collection[str] | None, present: Sequence[str]) -> None:
    missing = [name for name in columns or () if name not in present]
    if missing:
        known = ", ".join(present[:20]) or "none"
        raise InvalidDataset(f"no column {', '.join(missing)}; the file has {known}", param="dataset")


class _Text:
    """Lines as text, of which one record may have only so many bytes: a quote may never be closed."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)
        self._room = MAX_LINE_BYTES
        self.line = 0

    def start_record(self) -> None:
        self._room = MAX_LINE_BYTES

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.line += 1
        self._room -= len(line)
        if self._room < 0:
            raise InvalidDataset(f"the row is longer than {MAX_LINE_BYTES} bytes; is a quote left open?")
        try:
            return line.decode("utf-8-sig" if self.line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidDataset(f"not UTF-8 (byte {error.start})") from None


class ParquetRecords:
    """Rows of a Parquet file that can be sought in.

    What is stored in a few bytes can stand for any number of rows and characters, so that rows are decoded
    one at a time and counted.
    """

    def __init__(self, file: BinaryIO, columns: Collection[str] | None = None) -> None:
        """
        Args:
            columns: that the file must have, and all that are read; None reads every column.

        Raises:
            InvalidDataset: not Parquet, damaged, a column is missing, or a row group is too large.
            OSError: the file cannot be read.
        """
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise InvalidDataset(
                "Parquet files need pyarrow, which is not installed here; send the rows as JSONL or CSV",
                param="dataset",
            ) from error
        with _telling():
            self._opened: Any = parquet.ParquetFile(file, pre_buffer=False)
            present = self._opened.schema_arrow.names
            _require(columns, present)
            self._columns = [name for name in present if columns is None or name in columns]
            _check_row_groups(self._opened.metadata, self._columns)

    def __iter__(self) -> Iterator[object]:
        return self.from_row(0)

    def from_row(self, start: int) -> Iterator[object]:
        """Rows from the one with this number on; row groups before it are not decoded.

        Raises:
            InvalidDataset: damaged, or the rows take more than may be decoded.
            OSError: the file cannot be read.
        """
        metadata = self._opened.metadata
        group = 0
        while group < metadata.num_row_groups and start >= metadata.row_group(group).num_rows:
            start -= metadata.row_group(group).num_rows
            group += 1
        decoded = 0
        with _telling():
            batches = self._opened.iter_batches(
                1, row_groups=range(group, metadata.num_row_groups), columns=self._columns, use_threads=False
            )
            for batch in batches:
                decoded += batch.nbytes
                if decoded > MAX_DECODED_BYTES:
                    raise InvalidDataset(
                        f"the rows take more than {MAX_DECODED_BYTES} bytes once they are decoded; choose "
                        "fewer with offset and limit, or write the file in smaller row groups",
                        param="dataset",
                    )
                if start:
                    start -= batch.num_rows
                    continue
                yield from batch.to_pylist()


@contextmanager
def _telling() -> Iterator[None]:
    """What pyarrow finds wrong with a file, as an InvalidDataset."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, UnicodeDecodeError, OverflowError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's; pyarrow's own, of a damaged file, have no number
        reason = " ".join(str(error).split())[:300]
        raise InvalidDataset(f"not a Parquet file that can be read: {reason}", param="dataset") from error


def _check_row_groups(metadata: Any, columns: Collection[str]) -> None:
    for group in range(metadata.num_row_groups):
        described = metadata.row_group(group)
        chunks = (described.column(i) for i in range(described.num_columns))
        size = sum(
            chunk.total_uncompressed_size
            for chunk in chunks
            if chunk.path_in_schema.partition(".")[0] in columns
        )
        if described.num_rows > MAX_ROW_GROUP_ROWS:
            raise InvalidDataset(
                f"row group {group} has {described.num_rows} rows, at most {MAX_ROW_GROUP_ROWS} are read; "
                "write the file in smaller row groups",
                param="dataset",
            )
        if size > MAX_ROW_GROUP_BYTES:
            raise InvalidDataset(
                f"row group {group} takes {size} bytes, at most {MAX_ROW_GROUP_BYTES} are read; write the "
                "file in smaller row groups",
                param="dataset",
            )
