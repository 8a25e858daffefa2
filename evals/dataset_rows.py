"""Rows of a dataset: questions and answers in GSM8K's form, rows of your own task, or texts.

The API reads a dataset at submission, so that it refuses bad rows before the job is queued; the worker reads
it again. A row keeps the task's columns, and the short values of all others for labels and groups.
Source of GSM8K's form: https://github.com/openai/grade-school-math.
"""

import json
import math
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from actograph.contract.base import MAX_PROMPT_CHARS
from actograph.contract.errors import InvalidDataset
from evals.dataset_readers import at_most, json_records

MAX_REPORTED = 10
#: of all rows of a job together
MAX_HELD_CHARS = 1 << 28
#: longest text that a row keeps of a column that its prompt does not use, and longest name of such a column
MAX_SHORT_CHARS = 256

#: an answer in GSM8K's form, by lm-eval's strict-match filter
GOLD = re.compile(r"#### (-?[0-9.,]+)")
_NUMBER = re.compile(r"-?[0-9.]*[0-9][0-9.]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetRow:
    """A problem, or a text as the question. `index` is its row in the dataset, from 0, without offset."""

    index: int
    question: str
    answer: str = ""
    #: other columns in the prompt of a task of your own, and short values of the rest, see `short_values`
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def input(self) -> dict[str, Any]:
        """The row as a sample stores it."""
        kept: dict[str, Any] = {"question": self.question, "answer": self.answer}
        return kept | ({"columns": dict(self.columns)} if self.columns else {})

    @classmethod
    def from_input(cls, index: int, given: Mapping[str, Any]) -> "DatasetRow":
        return cls(index=index, **given)


class RowForm:
    """Turns records into rows."""

    #: the columns to read; a record may lack some of them
    columns: Collection[str] = ()
    #: the columns that every file and record must have
    required: Collection[str] = ()

    @abstractmethod
    def __call__(self, index: int, record: Mapping[str, Any], /) -> DatasetRow:
        """The row of a record. Raises InvalidDataset if the record does not fit."""


class Problems(RowForm):
    """Rows in GSM8K's form."""

    columns = required = ("question", "answer")

    def __call__(self, index: int, record: Mapping[str, Any], /) -> DatasetRow:
        faults = list(_field_faults(record, self.required))
        answer = record.get("answer")
        if text_fault(answer) is None and not _has_gold(str(answer)):
            faults.append("answer does not end with a gold number (#### N)")
        if faults:
            raise InvalidDataset(", ".join(faults))
        columns = short_values(record, self.columns)
        return DatasetRow(index=index, question=record["question"], answer=record["answer"], columns=columns)


class Texts(RowForm):
    """Rows with a text in one column."""

    def __init__(self, column: str) -> None:
        self._column = column
        self.columns = self.required = (column,)

    def __call__(self, index: int, record: Mapping[str, Any], /) -> DatasetRow:
        for fault in _field_faults(record, self.required):
            raise InvalidDataset(fault)
        columns = short_values(record, self.columns)
        return DatasetRow(index=index, question=record[self._column], columns=columns)


def short_values(record: Mapping[str, Any], used: Collection[str]) -> dict[str, Any]:
    """Values of the columns that a prompt does not use, for labels and groups.

    Kept are texts of up to `MAX_SHORT_CHARS` characters, numbers and booleans. Longer and nested values, and
    numbers that JSON lacks, are left out.
    """
    return {
        name: value
        for name, value in record.items()
        if name not in used and len(name) <= MAX_SHORT_CHARS and text_fault(name) is None and _is_short(value)
    }


def _is_short(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_SHORT_CHARS and text_fault(value) is None
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, bool | int) and abs(value) < 1 << 63


def read_rows(lines: Iterable[bytes], *, limit: int | None = None, offset: int = 0) -> list[DatasetRow]:
    """The rows of lines of JSON in GSM8K's form; see `checked`."""
    return list(checked(json_records(lines, start=offset), Problems(), limit=limit, offset=offset))


def checked(
    records: Iterable[object], form: RowForm, *, limit: int | None = None, offset: int = 0
) -> Iterator[DatasetRow]:
    """Check `limit` records; then raise the error about all bad rows. Rows after a bad one are not returned.

    Args:
        records: mappings; a record that is an `InvalidDataset` is a bad row.
        offset: the row number of the first record.

    Raises:
        InvalidDataset: the first bad rows, with their fields; or there are no rows.
    """
    faults: list[str] = []
    count = held = 0
    chosen = records if limit is None else islice(records, at_most(limit))
    for index, record in enumerate(chosen, start=offset):
        try:
            row = _row(index, record, form)
        except InvalidDataset as error:
            faults.append(f"row {index}: {error.message}" if len(faults) < MAX_REPORTED else "")
            continue
        count += 1
        held += len(row.question) + len(row.answer) + len(json.dumps(row.columns))
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
        raise nothing_at(offset)


def nothing_at(offset: int) -> InvalidDataset:
    """The error of a dataset that ends before this row."""
    reason = f"no rows at offset {offset}: the dataset ends before it"
    return InvalidDataset(reason if offset else "the dataset has no rows", param="dataset")


def _row(index: int, record: object, form: RowForm) -> DatasetRow:
    if isinstance(record, InvalidDataset):
        raise record
    if not isinstance(record, Mapping):
        fields = " and ".join(form.required) or "the columns of the task"
        raise InvalidDataset(f"not a JSON object with {fields}")
    return form(index, record)


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
