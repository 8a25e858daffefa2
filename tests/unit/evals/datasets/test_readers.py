"""CSV and Parquet rows: what is taken, what is refused, and which row the refusal names."""

import csv
import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from actograph.contract.errors import InvalidDataset
from evals import dataset_readers as readers
from evals.dataset_readers import bounded_lines, csv_records, parquet_records, records_of
from evals.dataset_rows import DatasetRow, Problems, checked, read_rows

HEAD = b"question,answer\n"
GOOD = b"How many?,#### 3\n"


def lines(content: bytes) -> Iterable[bytes]:
    return bounded_lines(io.BytesIO(content))


def check_rows(records: Iterable[object], **options: Any) -> list[DatasetRow]:
    return list(checked(records, Problems(), **options))


def refusal(content: bytes, **options: Any) -> str:
    with pytest.raises(InvalidDataset) as caught:
        check_rows(csv_records(lines(content), Problems.columns), **options)
    assert caught.value.param == "dataset"
    return caught.value.message


def in_parquet(table: dict[str, list[Any]], **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(table), file, **options)
    file.seek(0)
    return file


def test_real_gsm8k_is_the_same_in_every_format(shared: Path) -> None:
    content = (shared / "data/gsm8k/test.jsonl").read_bytes()
    expected = read_rows(lines(content))
    records = [json.loads(line) for line in content.splitlines()]
    text = io.StringIO()
    writer = csv.DictWriter(text, ["answer", "question"], lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(records)
    assert check_rows(csv_records(lines(text.getvalue().encode()), Problems.columns)) == expected
    table = {name: [record[name] for record in records] for name in ("answer", "question")}
    table["pages"] = [["a", "b"] for _ in records]
    for row_group in (None, 100):
        file = in_parquet(table, row_group_size=row_group, compression="zstd")
        assert (
            check_rows(parquet_records(file, columns=Problems.columns, required=Problems.columns)) == expected
        )
    records = parquet_records(file, start=700, columns=Problems.columns)
    assert check_rows(records, limit=3, offset=700) == expected[700:703]


def test_what_is_refused(subtests: pytest.Subtests) -> None:
    for content, reason in [
        (HEAD + GOOD + b"only one\n", "row 1: has not the 2 values that the first line names (line 3)"),
        (HEAD + b"a,b,c\n", "row 0: has not the 2 values"),
        (HEAD + GOOD + b",#### 3\n", "row 1: question is empty"),
        (HEAD + b"q,three\n", "row 0: answer does not end with a gold number"),
        (
            HEAD + GOOD + b'"open,#### 3\n' + GOOD,
            "row 1: not CSV: unexpected end of data; is a quote not closed? (line 4)",
        ),
        (HEAD + b'"a"b,#### 3\n', "row 0: not CSV: "),
        (HEAD + GOOD + b"\xff,#### 3\n", "row 1: not UTF-8 (byte 0) (line 3)"),
        (b"question,question\n", "names question twice"),
        (b"question,\n", "column 2 has no name"),
        (b"question,gold,id\n" + GOOD, "no column answer; the file has question, gold, id"),
        (b"\xff\n", "not UTF-8"),
        (HEAD, "the dataset has no rows"),
        (b"", "the dataset has no rows"),
    ]:
        with subtests.test(content=content, reason=reason):
            assert reason in refusal(content)


def test_parquet_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: io.BytesIO) -> str:
        with pytest.raises(InvalidDataset) as caught:
            check_rows(parquet_records(file, columns=Problems.columns, required=Problems.columns))
        return caught.value.message

    good: dict[str, list[Any]] = {"question": ["q", "r"], "answer": ["#### 1", "#### 2"]}
    whole = in_parquet(good).getvalue()
    assert "not a Parquet file" in refused(io.BytesIO(b"question,answer\n"))
    assert "not a Parquet file" in refused(io.BytesIO(b""))
    assert "not a Parquet file" in refused(io.BytesIO(whole[:40] + b"\xff" * 40 + whole[80:]))
    assert "no column answer; the file has question, gold" in refused(
        in_parquet({"question": ["q"], "gold": ["1"]})
    )
    assert "row 1: answer is not a string" in refused(in_parquet({**good, "answer": ["#### 1", None]}))
    assert "row 0: answer is not a string" in refused(in_parquet({**good, "answer": [1, 2]}))
    monkeypatch.setattr(readers, "MAX_ROW_GROUP_BYTES", 1000)
    big = in_parquet({**good, "unused": ["x" * 4000, "y" * 4000]}, use_dictionary=False)
    assert len(check_rows(parquet_records(big, columns=Problems.columns))) == 2
    message = refused(in_parquet({"question": ["x" * 4000], "answer": ["#### 1"]}))
    assert re.search(r"row group 0 has 1 rows and \d+ bytes .* 1000 bytes are allowed", message)
    monkeypatch.setattr(readers, "MAX_ROW_GROUP_ROWS", 1)
    assert "row group 0 has 2 rows and" in refused(in_parquet(good))


def test_rows_start_anywhere(subtests: pytest.Subtests) -> None:
    rows = [{"n": str(i)} for i in range(100)]
    csv_file = "n\n" + "".join(f"{i}\n" for i in range(100))
    json_file = "".join(json.dumps(row) + "\n" for row in rows)
    for written, content in [
        ("csv", csv_file.encode()),
        ("jsonl", json_file.encode()),
        ("parquet", in_parquet({"n": [row["n"] for row in rows]}, row_group_size=10).getvalue()),
    ]:
        with subtests.test(written):
            for start in (0, 59, 98, 100, 10**30):
                assert list(records_of(io.BytesIO(content), written, start=start)) == rows[start:]


def test_columns_of_short_values_are_decoded_beside_the_chosen_ones() -> None:
    table: dict[str, list[Any]] = {
        "question": ["q" * 2000] * 300, "id": list(range(300)), "topic": ["a", "b", "c"] * 100,
        "long": [f"{n}" * 2000 for n in range(300)], "pages": [[n] for n in range(300)],
    }  # fmt: skip
    file = in_parquet(table, compression="zstd", use_dictionary=False)
    record: Any = next(iter(parquet_records(file, columns=["question"])))
    assert record == {"question": "q" * 2000, "id": 0, "topic": "a"}
