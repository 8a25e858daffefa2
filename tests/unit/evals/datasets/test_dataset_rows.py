"""Reading GSM8K-style rows: what is taken, what is refused, and what the refusal says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from actograph.contract.base import MAX_PROMPT_CHARS
from actograph.contract.errors import InvalidDataset
from actograph.contract.tasks import TaskSpec
from evals.dataset_readers import MAX_LINE_BYTES, bounded_lines
from evals.dataset_rows import Problems, Texts, checked, read_rows
from evals.task_rows import Task


def line(question: Any = "How many?", answer: Any = "Three.\n#### 3", **more: Any) -> bytes:
    return json.dumps({"question": question, "answer": answer, **more}).encode() + b"\n"


def refusal(*lines: bytes, **options: Any) -> str:
    with pytest.raises(InvalidDataset) as caught:
        read_rows(lines, **options)
    assert caught.value.param == "dataset"
    return caught.value.message


def test_real_gsm8k_is_read_whole(shared: Path) -> None:
    with (shared / "data/gsm8k/test.jsonl").open("rb") as stream:
        rows = read_rows(bounded_lines(stream))
    assert len(rows) == 1319
    assert [row.index for row in rows] == list(range(1319))
    assert rows[0].question.startswith("Janet\u2019s ducks lay 16 eggs per day.")
    assert rows[0].answer.endswith("#### 18")


def test_limit_and_offset_keep_the_row_numbers_of_the_dataset() -> None:
    rows = read_rows([line(question=f"q{i}") for i in range(10)], limit=3, offset=4)
    assert [(row.index, row.question) for row in rows] == [(4, "q4"), (5, "q5"), (6, "q6")]


def test_byte_order_mark_blank_lines_carriage_returns_and_further_fields_are_tolerated() -> None:
    lines = [b"\xef\xbb\xbf" + line(question="a", id=7), b"\n", b"  \r\n", line(question="b")[:-1] + b"\r\n"]
    assert [(row.index, row.question) for row in read_rows(lines)] == [(0, "a"), (1, "b")]


def test_a_bad_row_is_named_with_its_number_and_fault(subtests: pytest.Subtests) -> None:
    for bad, fault in [
        (b"{", r"not JSON: .+ \(column 2\)"),
        (b'{"question": "\xff"}', r"not UTF-8 \(byte 14\)"),
        (b"[1]", "not a JSON object with question and answer"),
        (b'"question"', "not a JSON object with question and answer"),
        (b'{"answer": "#### 1"}', "question is missing"),
        (b'{"question": "q"}', "answer is missing"),
        (line(question=""), "question is empty"),
        (line(question=" \n"), "question is empty"),
        (line(question=None), "question is not a string"),
        (line(question=["q"]), "question is not a string"),
        (line(answer=3), "answer is not a string"),
        (line(question="\0"), "question contains a NUL character"),
        (line(question="\ud800"), "question contains a lone surrogate, which is not Unicode text"),
        (line(question="q" * (MAX_PROMPT_CHARS + 1)), "question is longer than 1000000 characters"),
        (b"[" * 200_000, "not valid JSON here: a number is too long, or the nesting too deep"),
        (b"1" * 10_000, "not valid JSON here: a number is too long, or the nesting too deep"),
        (b" " * (MAX_LINE_BYTES + 1), "the line is longer than 4000000 bytes"),
    ]:
        with subtests.test(bad=bad, fault=fault):
            assert re.fullmatch(rf"row 1: {fault}", refusal(line(), bad, line()))


def test_no_rows() -> None:
    assert refusal() == "the dataset has no rows"
    assert refusal(b"\n", b" \n") == "the dataset has no rows"
    assert refusal(line(), line(), offset=2) == "no rows at offset 2: the dataset ends before it"


def test_short_values_of_other_columns_stay_with_a_row() -> None:
    record = {
        "question": "1 + 1?", "answer": "#### 2", "id": 7, "topic": "sums", "hard": False, "weight": 0.5,
        "long": "x" * 257, "empty": "", "nothing": None, "pages": [1], "nan": float("nan"), "big": 1 << 63,
        "n" * 257: 1, "\0": 1,
    }  # fmt: skip
    kept = {"id": 7, "topic": "sums", "hard": False, "weight": 0.5}
    assert Problems()(0, record).input == {"question": "1 + 1?", "answer": "#### 2", "columns": kept}
    (text,) = checked([record | {"text": "t"}], Texts("text"))
    assert text.columns == kept | {"question": "1 + 1?", "answer": "#### 2"}
    task = Task(TaskSpec(name="own", prompt="{{question}} {{long}}", target="{{answer}}"))
    row = task(0, record)
    assert row.columns == kept | {"answer": "#### 2", "long": record["long"]}
    same = task(1, record | {"id": 8})
    assert task.shown(row) == task.shown(same), "columns that the prompt does not use make no other problem"
