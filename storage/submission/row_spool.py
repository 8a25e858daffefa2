"""Dataset rows on disk during a submission, so that memory does not grow with the dataset."""

import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from tempfile import SpooledTemporaryFile
from typing import Any, Generic, TypeVar

from actograph.datasets.dataset_rows import DatasetRow, TextRow

R = TypeVar("R", DatasetRow, TextRow)
#: Rows of small datasets stay in memory.
_MEMORY_BYTES = 1 << 20
_PAGE_BYTES = 64 << 10


class RowSpool(Generic[R]):
    """Rows that can be iterated several times. The last reference deletes their unnamed file."""

    def __init__(
        self,
        rows: Iterable[R],
        encode: Callable[[R], Mapping[str, Any]],
        decode: Callable[[Mapping[str, Any]], R],
    ) -> None:
        """Read all rows. Raises their errors, and OSError if the rows cannot be written."""
        self._decode: Callable[[Mapping[str, Any]], R] = decode
        self._count = 0
        self._file = SpooledTemporaryFile(max_size=_MEMORY_BYTES)  # noqa: SIM115 (closed with the object)
        weakref.finalize(self, self._file.close)
        for row in rows:
            self._file.write(json.dumps(encode(row), separators=(",", ":")).encode() + b"\n")
            self._count += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[R]:
        at = 0
        while True:
            self._file.seek(at)
            lines = self._file.readlines(_PAGE_BYTES)
            at = self._file.tell()
            if not lines:
                return
            for line in lines:
                yield self._decode(json.loads(line))


def problems(rows: Iterable[DatasetRow]) -> RowSpool[DatasetRow]:
    """Rows of an evaluation."""
    return RowSpool(
        rows,
        lambda row: {"index": row.index, "input": row.input},
        lambda kept: DatasetRow.from_input(kept["index"], kept["input"]),
    )


def texts(rows: Iterable[TextRow]) -> RowSpool[TextRow]:
    """Rows of a capture job."""
    return RowSpool(
        rows,
        lambda row: {"index": row.index, "text": row.text},
        lambda kept: TextRow(index=kept["index"], text=kept["text"]),
    )
