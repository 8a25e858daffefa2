"""Rows of a Parquet file, decoded one at a time.

The reader runs in a child process (`parquet_process`), so this module imports little. Memory is bounded by
the pages of the selected columns and by one row.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from actograph.contract.errors import InvalidDataset

#: limits of a row group
MAX_ROW_GROUP_BYTES = 1 << 30
MAX_ROW_GROUP_ROWS = 1 << 21
#: limit of decoded bytes, including skipped rows of the first row group
MAX_DECODED_BYTES = 4 << 30
#: limit of decoded bytes per byte of the file, and a limit that small files may always use
MAX_EXPANSION = 100
LEAST_DECODED_BYTES = 64 << 20
_READ_BYTES = 1 << 20


def require_columns(columns: Collection[str], present: Sequence[str]) -> None:
    """Raises InvalidDataset if one of `columns` is not present."""
    missing = [name for name in columns if name not in present]
    if missing:
        known = ", ".join(present[:20]) or "none"
        raise InvalidDataset(f"no column {', '.join(missing)}; the file has {known}", param="dataset")


class ParquetRecords:
    """Rows of a seekable Parquet file.

    A few bytes can stand for any number of rows and characters, so rows are decoded and counted singly.
    """

    def __init__(
        self,
        file: BinaryIO,
        columns: Collection[str] | None = None,
        *,
        required: Collection[str] = (),
        file_bytes: int = 0,
    ) -> None:
        """
        Args:
            columns: the columns to read if the file has them; None reads all columns.
            required: columns that the file must have.
            file_bytes: size of the file, for the limit of decoded bytes.

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
            # read compressed bytes in small pieces, not whole columns of a row group
            self._opened: Any = parquet.ParquetFile(file, pre_buffer=False, buffer_size=_READ_BYTES)
            present = self._opened.schema_arrow.names
            require_columns(required, present)
            self._columns = [name for name in present if columns is None or name in columns]
            _check_row_groups(self._opened.metadata, self._columns)
        self._most = MAX_DECODED_BYTES
        if file_bytes:
            self._most = min(self._most, max(LEAST_DECODED_BYTES, MAX_EXPANSION * file_bytes))

    def __iter__(self) -> Iterator[object]:
        return self.from_row(0)

    def from_row(self, start: int) -> Iterator[object]:
        """Rows from this number on; earlier row groups are not decoded.

        Raises:
            InvalidDataset: damaged, or the rows exceed the limit of decoded bytes.
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
                if decoded > self._most:
                    raise InvalidDataset(
                        f"the rows take more than {self._most} bytes once they are decoded; choose fewer "
                        "with offset and limit, or write the file in smaller row groups",
                        param="dataset",
                    )
                if start:
                    start -= batch.num_rows
                    continue
                yield from batch.to_pylist()


@contextmanager
def _telling() -> Iterator[None]:
    """Turn errors of pyarrow into InvalidDataset."""
    import pyarrow

    try:
        yield
    except MemoryError:
        raise
    except (pyarrow.ArrowException, UnicodeDecodeError, OverflowError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk; pyarrow's errors about damaged files have no number
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
