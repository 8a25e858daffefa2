"""Records of dataset files: JSONL, CSV and Parquet, read one at a time.

A record is a mapping, or an `InvalidDataset` for a row that cannot be read; `dataset_rows.checked` adds the
row's number.
"""

import csv
import json
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, BinaryIO, TypeVar

from actograph.contract.errors import InvalidDataset
from actograph.contract.specs import DatasetFormat

MAX_LINE_BYTES = 4_000_000
#: limits of a Parquet row group: all rows, and the decompressed columns that are read
MAX_ROW_GROUP_ROWS = 1 << 21
MAX_ROW_GROUP_BYTES = 256 << 20
#: a dictionary can expand rows further, so few are decoded at a time
_BATCH_ROWS = 64
_READ_BYTES = 1 << 20
#: average bytes of the values of a Parquet column that is read for labels and groups, and of its headers
_SHORT_BYTES, _COLUMN_BYTES = 256, 4096
_FORMATS: dict[str, DatasetFormat] = {".csv": "csv", ".parquet": "parquet"}
_BOM = b"\xef\xbb\xbf"

T = TypeVar("T")

# a limit for the whole process; the default is 131,072 characters
csv.field_size_limit(MAX_LINE_BYTES)


def format_of(filename: str) -> DatasetFormat:
    """The format by file name: .csv, .parquet, otherwise JSONL."""
    return _FORMATS.get(PurePosixPath(filename).suffix.lower(), "jsonl")


def records_of(
    file: BinaryIO,
    written: str,
    *,
    start: int = 0,
    columns: Collection[str] | None = None,
    required: Collection[str] = (),
) -> Iterator[object]:
    """The records of a file from row `start` on.

    Args:
        written: the format.
        columns: the columns of a Parquet file to decode, if it has them, beside those with short values;
            None decodes all.
        required: columns that a CSV or Parquet file must have.

    Raises:
        InvalidDataset: the file is damaged, has not the format or a required column, or exceeds a limit.
    """
    if written == "parquet":
        return parquet_records(file, start=start, columns=columns, required=required)
    if written == "csv":
        return from_row(csv_records(bounded_lines(file), required), start)
    return json_records(bounded_lines(file), start=start)


def at_most(number: int) -> int:
    """The number, or the largest one that `islice` takes."""
    return min(number, sys.maxsize)


def from_row(records: Iterable[T], start: int) -> Iterator[T]:
    """Skip the records before row `start`, which may be any number."""
    return islice(records, at_most(start), None)


def bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines with their ends. A line above the limit is cut to one byte more, so that readers refuse it."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES + 1)


def json_records(lines: Iterable[bytes], *, start: int = 0) -> Iterator[object]:
    """The values of lines of JSON. Blank lines and a UTF-8 byte order mark are skipped."""
    texts = (line if number else line.removeprefix(_BOM) for number, line in enumerate(lines))
    return map(
        _parsed, from_row((text for text in texts if len(text) > MAX_LINE_BYTES or text.strip()), start)
    )


def _parsed(line: bytes) -> object:
    if len(line) > MAX_LINE_BYTES:
        return InvalidDataset(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return InvalidDataset(f"not UTF-8 (byte {error.start})")
    except json.JSONDecodeError as error:
        return InvalidDataset(f"not JSON: {error.msg} (column {error.colno})")
    except (ValueError, RecursionError):
        # a number with thousands of digits, or too many nested brackets
        return InvalidDataset("not valid JSON here: a number is too long, or the nesting too deep")


def csv_records(lines: Iterable[bytes], required: Collection[str] = ()) -> Iterator[object]:
    """Rows of a CSV file (RFC 4180, UTF-8) with the column names of its first line; all values are texts.

    Blank lines are skipped. Reading ends at a broken quote.

    Raises:
        InvalidDataset: the first line cannot be read, does not name each column once, or lacks one.
    """
    reader = csv.DictReader(_decoded(lines), strict=True)
    try:
        reader.fieldnames = names = [name.strip() for name in reader.fieldnames or ()]
    except csv.Error as error:
        raise InvalidDataset(f"not CSV: {error}", param="dataset") from None
    _check_names(names, required)
    try:
        for record in reader:
            if None in record or None in record.values():
                counts = f"has not the {len(names)} values that the first line names"
                yield InvalidDataset(f"{counts} (line {reader.line_num})")
            else:
                yield record
    except csv.Error as error:
        yield InvalidDataset(f"not CSV: {error}; is a quote not closed? (line {reader.reader.line_num})")
    except InvalidDataset as error:  # the reader has not counted this line
        yield InvalidDataset(f"{error.message} (line {reader.reader.line_num + 1})")


def _check_names(names: list[str], required: Collection[str]) -> None:
    if "" in names:
        raise InvalidDataset(f"column {names.index('') + 1} has no name in the first line", param="dataset")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InvalidDataset(f"the first line names {twice[0]} twice", param="dataset")
    if names:
        _require_columns(required, names)


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if len(line) > MAX_LINE_BYTES:
            raise InvalidDataset(f"the line is longer than {MAX_LINE_BYTES} bytes", param="dataset")
        try:
            yield line.decode("utf-8" if number else "utf-8-sig")
        except UnicodeDecodeError as error:
            raise InvalidDataset(f"not UTF-8 (byte {error.start})", param="dataset") from None


def parquet_records(
    file: BinaryIO,
    *,
    start: int = 0,
    columns: Collection[str] | None = None,
    required: Collection[str] = (),
) -> Iterator[object]:
    """Rows of a Parquet file from `start` on; see `records_of`."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InvalidDataset(
            "Parquet files need pyarrow, which is not installed here; send the rows as JSONL or CSV",
            param="dataset",
        ) from error
    try:
        # read compressed bytes in small pieces, not whole columns of a row group
        opened: Any = parquet.ParquetFile(file, pre_buffer=False, buffer_size=_READ_BYTES)
        present = opened.schema_arrow.names
        _require_columns(required, present)
        chosen = [name for name in present if columns is None or name in columns or _is_short(opened, name)]
        for number in range(opened.metadata.num_row_groups):
            _check_row_group(number, opened.metadata.row_group(number), chosen)
        for batch in opened.iter_batches(_BATCH_ROWS, columns=chosen, use_threads=False):
            yield from batch.slice(start).to_pylist()
            start = max(0, start - batch.num_rows)
    except (pyarrow.ArrowException, UnicodeDecodeError, OverflowError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk; pyarrow's errors about damaged files have no number
        reason = " ".join(str(error).split())[:300]
        raise InvalidDataset(f"not a Parquet file that can be read: {reason}", param="dataset") from error


def _is_short(opened: Any, name: str) -> bool:
    """Whether a column of a Parquet file has texts, numbers or booleans that take few bytes on average."""
    from pyarrow import types

    kind = opened.schema_arrow.field(name).type
    checks = (types.is_boolean, types.is_integer, types.is_floating, types.is_string, types.is_large_string)
    if not any(check(kind) for check in checks):
        return False
    groups = [opened.metadata.row_group(number) for number in range(opened.metadata.num_row_groups)]
    size = sum(
        group.column(i).total_uncompressed_size
        for group in groups
        for i in range(group.num_columns)
        if group.column(i).path_in_schema == name
    )
    return bool(size <= _SHORT_BYTES * max(1, opened.metadata.num_rows) + _COLUMN_BYTES)


def _check_row_group(number: int, group: Any, columns: Collection[str]) -> None:
    chunks = [group.column(i) for i in range(group.num_columns)]
    size = sum(
        chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.partition(".")[0] in columns
    )
    if size > MAX_ROW_GROUP_BYTES or group.num_rows > MAX_ROW_GROUP_ROWS:
        raise InvalidDataset(
            f"row group {number} has {group.num_rows} rows and {size} bytes in the columns that are read; at "
            f"most {MAX_ROW_GROUP_ROWS} rows and {MAX_ROW_GROUP_BYTES} bytes are allowed. Write the file in "
            "smaller row groups",
            param="dataset",
        )


def _require_columns(columns: Collection[str], present: Sequence[str]) -> None:
    missing = [name for name in columns if name not in present]
    if missing:
        known = ", ".join(present[:20]) or "none"
        raise InvalidDataset(f"no column {', '.join(missing)}; the file has {known}", param="dataset")
