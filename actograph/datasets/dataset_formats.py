"""CSV datasets as records, one mapping per row; JSONL is read by `dataset_rows`, Parquet by `parquet_rows`.

A record that is an `InvalidDataset` says why its row cannot be read, so that `stream_rows` and
`stream_texts` name the row. Memory is bounded by one record.
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
                f"has {len(values)} values where the first line names {len(names)} columns (line {text.line})"
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
    """Lines as text. One record may have only so many bytes and values: a quote may never be closed."""

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
        """Give the memory back that the last record held."""
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
            raise InvalidDataset(f"the row is longer than {MAX_LINE_BYTES} bytes; is a quote left open?")
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
