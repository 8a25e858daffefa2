"""Rows of a dataset: questions and answers in GSM8K's form, rows of your own task, or texts.

The API reads a dataset at submission, so that it refuses bad rows before the job is queued; the worker reads
it again. Only the task's columns are kept.
Source of GSM8K's form: https://github.com/openai/grade-school-math.
"""

import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, TypeVar

from actograph.contract.base import MAX_PROMPT_CHARS
from actograph.contract.errors import InvalidDataset
from actograph.datasets.readers import json_records

MAX_REPORTED = 10
#: of all rows of a job together
MAX_HELD_CHARS = 1 << 28

#: an answer in GSM8K's form, by lm-eval's strict-match filter
GOLD = re.compile(r"#### (-?[0-9.,]+)")
_NUMBER = re.compile(r"-?[0-9.]*[0-9][0-9.]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetRow:
    """A problem. `index` is its row in the dataset, from 0, independent of `offset`."""

    index: int
    question: str
    answer: str
    #: other columns in the prompt of a task of your own
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def input(self) -> dict[str, Any]:
        """The row as a sample stores it."""
        kept: dict[str, Any] = {"question": self.question, "answer": self.answer}
        return kept | ({"columns": dict(self.columns)} if self.columns else {})

    @property
    def characters(self) -> int:
        """Size of the row as a sample stores it."""
        columns = sum(len(v) if isinstance(v, str) else len(json.dumps(v)) for v in self.columns.values())
        return len(self.question) + len(self.answer) + columns

    @classmethod
    def from_input(cls, index: int, given: Mapping[str, Any]) -> "DatasetRow":
        columns = given.get("columns", {})
        return cls(index=index, question=given["question"], answer=given["answer"], columns=columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRow:
    """A text to read. `index` is its row in the dataset, from 0, independent of `offset`."""

    index: int
    text: str

    @property
    def characters(self) -> int:
        return len(self.text)


R = TypeVar("R", DatasetRow, TextRow)
R_co = TypeVar("R_co", DatasetRow, TextRow, covariant=True)


class RowForm(Protocol[R_co]):
    """Turns a record into a row, or raises InvalidDataset."""

    @property
    def columns(self) -> Collection[str]:
        """The columns to read; a record may lack some of them."""
        ...

    @property
    def required(self) -> Collection[str]:
        """The columns that every file and record must have."""
        ...

    def __call__(self, index: int, record: Mapping[str, Any], /) -> R_co: ...


class Problems:
    """Rows in GSM8K's form."""

    columns = required = ("question", "answer")

    def __init__(self, *, require_gold: bool = True) -> None:
        """`require_gold`: every answer must end with `#### N`, which the gsm8k scorers need."""
        self._require_gold = require_gold

    def __call__(self, index: int, record: Mapping[str, Any], /) -> DatasetRow:
        faults = list(_field_faults(record, self.required))
        answer = record.get("answer")
        if self._require_gold and text_fault(answer) is None and not _has_gold(str(answer)):
            faults.append("answer does not end with a gold number (#### N)")
        if faults:
            raise InvalidDataset(", ".join(faults))
        return DatasetRow(index=index, question=record["question"], answer=record["answer"])


class Texts:
    """Rows with a text in one column."""

    def __init__(self, column: str) -> None:
        self.columns = self.required = (column,)

    def __call__(self, index: int, record: Mapping[str, Any], /) -> TextRow:
        for fault in _field_faults(record, self.required):
            raise InvalidDataset(fault)
        return TextRow(index=index, text=record[self.required[0]])


def read_rows(
    lines: Iterable[bytes],
    form: RowForm[DatasetRow] | None = None,
    *,
    limit: int | None = None,
    offset: int = 0,
) -> list[DatasetRow]:
    """The rows of lines of JSON; see `checked`. By default they have GSM8K's form."""
    return list(checked(json_records(lines, start=offset), form or Problems(), limit=limit, offset=offset))


def checked(
    records: Iterable[object], form: RowForm[R], *, limit: int | None = None, offset: int = 0
) -> Iterator[R]:
    """Check `limit` records; then raise the error about all bad rows. Rows after a bad one are not returned.

    Args:
        records: mappings; a record that is an `InvalidDataset` is a bad row.
        offset: the row number of the first record.

    Raises:
        InvalidDataset: the first bad rows, with their fields; or there are no rows.
    """
    faults: list[str] = []
    count = held = 0
    # the largest number for islice
    chosen = records if limit is None else islice(records, min(limit, sys.maxsize))
    for index, record in enumerate(chosen, start=offset):
        try:
            if isinstance(record, InvalidDataset):
                raise record
            if not isinstance(record, Mapping):
                fields = " and ".join(form.required) or "the columns of the task"
                raise InvalidDataset(f"not a JSON object with {fields}")
            row = form(index, record)
        except InvalidDataset as error:
            faults.append(f"row {index}: {error.message}" if len(faults) < MAX_REPORTED else "")
            continue
        count += 1
        held += row.characters
        if held > MAX_HELD_CHARS:
            raise InvalidDataset(
                f"the rows hold more than {MAX_HELD_CHARS} characters together; choose fewer with offset "
                "and limit",
                param="dataset",
            )
        if not faults:
            yield row
    if faults:
        more = f"; and {len(faults) - MAX_REPORTED} more" if len(faults) > MAX_REPORTED else ""
        raise InvalidDataset("; ".join(faults[:MAX_REPORTED]) + more, param="dataset")
    if not count:
        reason = f"no rows at offset {offset}: the dataset ends before it"
        raise InvalidDataset(reason if offset else "the dataset has no rows", param="dataset")


def _field_faults(row: Mapping[str, object], fields: Iterable[str]) -> Iterator[str]:
    for name in fields:
        if name not in row:
            yield f"{name} is missing"
        elif (fault := text_fault(row[name])) is not None:
            yield f"{name} {fault}"


def text_fault(value: object) -> str | None:
    """The reason why a value is not a valid text of a prompt or answer; None if it is valid."""
    if not isinstance(value, str):
        return "is not a string"
    if not value.strip():
        return "is empty"
    if len(value) > MAX_PROMPT_CHARS:
        return f"is longer than {MAX_PROMPT_CHARS} characters"
    # the index cannot store these, and tokenizers cannot encode them
    if "\0" in value:
        return "contains a NUL character"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "contains a lone surrogate, which is not Unicode text"
    return None


def _has_gold(answer: str) -> bool:
    """True if the answer ends with a number that a completion can match, once both are normalised."""
    _, marker, number = answer.rpartition("#### ")
    number = number.replace(",", "").replace("$", "").removesuffix(".")
    return bool(marker) and _NUMBER.fullmatch(number) is not None
