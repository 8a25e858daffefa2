"""CSV datasets as records, one mapping per row; `dataset_rows` reads JSONL, `parquet_rows` Parquet.

For a row that cannot be read the record is an `InvalidDataset`; `stream_rows` and `stream_texts` add the
row's number. Only one record is in memory at a time.
"""

import csv
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import PurePosixPath

from actograph.contract.errors import InvalidDataset
from actograph.contract.specs import DatasetFormat
from actograph.datasets import memory_budget
from actograph.datasets.dataset_lines import MAX_LINE_BYTES, MAX_ROW_VALUES, VALUE_BYTES, Lines
from actograph.datasets.parquet_rows import require_columns

_MAX_COLUMNS = 10_000

# a limit for the whole process; the default is 131,072 characters
csv.field_size_limit(MAX_LINE_BYTES)


def format_of(filename: str) -> DatasetFormat:
    """The format by file name: .csv, .parquet, otherwise JSONL."""
    match PurePosixPath(filename).suffix.lower():
        case ".csv":
            return "csv"
        case ".parquet":
            return "parquet"
    return "jsonl"


def csv_records(lines: Iterable[bytes], columns: Collection[str] | None = None) -> Iterator[object]:
    """Rows of a CSV file (RFC 4180, UTF-8) with the column names of its first line; all values are texts.

    Blank lines are skipped. Reading ends at a broken quote.

    Args:
        columns: columns that the file must have.

    Raises:
        InvalidDataset: the first line cannot be read, does not name each column once, or lacks one.
    """
    with closing(_Text(lines)) as text:
        yield from _csv_records(text, columns)


def _csv_records(text: "_Text", columns: Collection[str] | None) -> Iterator[object]:
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
            require_columns(columns or (), names)
        elif len(values) != len(names):
            yield InvalidDataset(
                f"has {len(values)} values, but the first line names {len(names)} columns (line {text.line})"
            )
        else:
            yield dict(zip(names, values, strict=True))


def _column_names(values: list[str]) -> list[str]:
    if len(values) > _MAX_COLUMNS:
        reason = f"the first line names more than {_MAX_COLUMNS} columns"
        raise InvalidDataset(reason, param="dataset")
    names = [name.strip() for name in values]
    unnamed = [str(place) for place, name in enumerate(names, start=1) if not name]
    if unnamed:
        raise InvalidDataset(f"column {unnamed[0]} has no name in the first line", param="dataset")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InvalidDataset(f"the first line names {twice[0]} twice", param="dataset")
    return names


class _Text:
    """Lines as text. Bytes and values of a record are limited, since a quote may never be closed."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)
        self._room = MAX_LINE_BYTES
        self._values = MAX_ROW_VALUES
        self._is_first = True
        self._held = ExitStack()
        self.line = 0

    def start_record(self) -> None:
        self._held.close()
        self._room, self._values = MAX_LINE_BYTES, MAX_ROW_VALUES
        if isinstance(self._lines, Lines):
            self.line += self._lines.skip_line_ends()

    def close(self) -> None:
        """Release the memory of the last record."""
        self._held.close()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.line += 1
        values = line.count(b",")
        self._room -= len(line)
        self._values -= values
        if self._room < 0:
            raise InvalidDataset(f"the row is longer than {MAX_LINE_BYTES} bytes; is a quote not closed?")
        if self._values < 0:
            raise InvalidDataset(f"the row holds more than {MAX_ROW_VALUES} values")
        size = 3 * len(line) + VALUE_BYTES * values
        self._held.enter_context(memory_budget.DATASETS.hold(size, "a row of the dataset"))
        encoding = "utf-8-sig" if self._is_first else "utf-8"
        self._is_first = False
        try:
            return line.decode(encoding)
        except UnicodeDecodeError as error:
            raise InvalidDataset(f"not UTF-8 (byte {error.start})") from None
