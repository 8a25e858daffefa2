"""Parquet files are decoded in a process of their own: what is read, and what small files cannot do."""

import datetime
import io
import os
from pathlib import Path
from typing import Any

import psutil
import pyarrow
import pytest
from pyarrow import parquet

from actograph.contract.errors import InvalidDataset, ServiceBusy, StoreDamaged
from actograph.datasets import parquet_process
from actograph.datasets.dataset_lines import MAX_LINE_BYTES
from actograph.datasets.dataset_rows import check_texts
from actograph.datasets.parquet_process import OtherValue, ParquetProcess

pytestmark = pytest.mark.integration  # a process for each file takes seconds


class Bytes:
    """A file in memory that counts the bytes that were read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)
        self.taken = 0

    def read(self, start: int, length: int) -> bytes:
        self.taken += length
        return self._data[start : start + length]


def in_parquet(table: Any, **options: Any) -> Bytes:
    file = io.BytesIO()
    parquet.write_table(table if isinstance(table, pyarrow.Table) else pyarrow.table(table), file, **options)
    return Bytes(file.getvalue())


def children() -> list[psutil.Process]:
    """Readers of this process; servers of other tests are its children too."""
    found = psutil.Process(os.getpid()).children()
    return [child for child in found if "actograph.datasets.parquet_process" in child.cmdline()]


def test_rows_of_the_columns_that_are_asked_for() -> None:
    rows = [{"text": f"é{i}", "list": [1, {"a": None}], "n": i} for i in range(1000)]
    file = in_parquet(pyarrow.Table.from_pylist([{**row, "list": [i]} for i, row in enumerate(rows)]))
    assert list(ParquetProcess(file, ["text", "list", "absent"])) == [
        {"text": f"é{i}", "list": [i]} for i in range(1000)
    ]
    assert list(ParquetProcess(file, ["n"]).from_row(998)) == [{"n": 998}, {"n": 999}]
    assert next(iter(ParquetProcess(file, None))) == {"text": "é0", "list": [0], "n": 0}
    with pytest.raises(InvalidDataset, match="no column gold; the file has text, list, n"):
        list(ParquetProcess(file, ["gold"], required=["gold"]))
    assert children() == []


def test_a_reader_that_stops_early_leaves_no_process_and_reads_no_more() -> None:
    text = pyarrow.array([os.urandom(50_000).hex() for _ in range(200)])
    file = in_parquet({"text": text}, row_group_size=10, use_dictionary=False)
    assert len(check_texts(ParquetProcess(file, ["text"]), "text", limit=3)) == 3
    assert file.taken < file.size / 4
    assert children() == []
    rows = iter(ParquetProcess(file, ["text"]))
    next(rows)
    assert len(children()) == 1
    del rows
    assert children() == []


def test_values_that_json_does_not_have_come_as_themselves_in_words() -> None:
    moment = datetime.datetime(2024, 1, 2, 3, 4, 5)
    (record,) = ParquetProcess(in_parquet({"at": [moment], "raw": [b"\xff"]}), None)
    assert isinstance(record, dict)
    assert isinstance(record["at"], OtherValue)
    assert str(record["at"]) == "2024-01-02 03:04:05"
    with pytest.raises(InvalidDataset, match="row 0: raw is not a string"):
        check_texts(ParquetProcess(in_parquet({"raw": [b"\xff"]}), ["raw"]), "raw")


def test_a_row_that_is_too_long_is_a_bad_row() -> None:
    file = in_parquet({"text": ["short", "x" * (MAX_LINE_BYTES + 1)]})
    with pytest.raises(InvalidDataset, match=f"row 1: the row is longer than {MAX_LINE_BYTES} bytes"):
        check_texts(ParquetProcess(file, ["text"]), "text")


def bomb_of_one_page() -> Bytes:
    """One value of 400 MB in a page of its own."""
    return in_parquet(
        {"text": pyarrow.array(["\0" * (400 << 20)])}, compression="zstd", use_dictionary=False,
        write_statistics=False,
    )  # fmt: skip


def bomb_of_a_dictionary() -> Bytes:
    """A list that names one long text a thousand times in each row."""
    words = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 3000, "int32"), ["x" * 900_000])
    lists = pyarrow.ListArray.from_arrays(pyarrow.array([0, 1000, 2000, 3000], "int32"), words)
    return in_parquet(pyarrow.table({"text": lists}), compression="zstd")


@pytest.mark.soak
@pytest.mark.parametrize(
    "bomb", [pytest.param(bomb_of_one_page, marks=pytest.mark.integration), bomb_of_a_dictionary]
)
def test_few_bytes_that_stand_for_many_end_the_child_and_not_the_reader(bomb: Any) -> None:
    file = bomb()
    assert file.size < 100_000
    status = Path("/proc/self/clear_refs")
    status.write_text("5")
    with pytest.raises(InvalidDataset, match=r"cannot be read with \d+ MiB|take more than"):
        list(ParquetProcess(file, ["text"]))
    peak = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    grown = int(peak.split()[1]) * 1024 - psutil.Process().memory_info().rss
    assert grown < 100 << 20
    assert children() == []


def test_rows_that_expand_far_beyond_the_file_are_refused() -> None:
    rows = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 3000, "int32"), ["x" * 100_000])
    file = in_parquet(pyarrow.table({"text": rows}), compression="zstd")
    assert len(check_texts(ParquetProcess(file, ["text"]), "text", limit=50)) == 50
    with pytest.raises(InvalidDataset, match="take more than 67108864 bytes once they are decoded"):
        check_texts(ParquetProcess(file, ["text"]), "text")


def test_one_file_is_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_process, "WAIT_SECONDS", 0.05)
    file = in_parquet({"text": ["a", "b"] * 50_000})
    first = iter(ParquetProcess(file, ["text"]))
    next(first)
    with pytest.raises(ServiceBusy, match="another Parquet file"):
        next(iter(ParquetProcess(file, ["text"])))
    first.close()  # type: ignore[attr-defined]
    assert next(iter(ParquetProcess(file, ["text"]))) == {"text": "a"}


def test_damage_of_the_file_is_the_readers_error() -> None:
    class Damaged(Bytes):
        def read(self, start: int, length: int) -> bytes:
            raise StoreDamaged("bytes do not match")

    with pytest.raises(StoreDamaged):
        list(ParquetProcess(Damaged(b"x" * 1000), None))
    assert children() == []
