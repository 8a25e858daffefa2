"""Rows of a dataset: questions and answers in GSM8K's form, rows of your own task, or texts.

The API reads a dataset at submission, so that it refuses bad rows before the job is queued; the worker reads
it again. Only the task's columns are kept.
Source of GSM8K's form: https://github.com/openai/grade-school-math.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, TypeVar

from actograph.contract.errors import InvalidDataset
from actograph.contract.specs import MAX_PROMPT_CHARS
from actograph.datasets.readers import json_records

MAX_REPORTED = 10
#: of all rows of a job together
MAX_HELD_CHARS = 1 << 29
#: columns of GSM8K's form
GSM8K_COLUMNS = ("question", "answer")

#: an answer in GSM8K's form, by lm-eval's strict-match filter
GOLD = re.compile(r"#### (-?[0-9.,]+)")
_NUMBER = re.compile(r"-?[0-9.]*[0-9][0-9.]*")

R = TypeVar("R", "DatasetRow", "TextRow")


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
        return cls(
            index=index,
            question=given["question"],
            answer=given["answer"],
            columns=given.get("columns", {}),
        )


class RowReader(Protocol):
    """Turns a record into a row of a task, or raises InvalidDataset."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns to read; a record may lack some of them."""
        ...

    def __call__(self, index: int, record: Mapping[str, Any], /) -> DatasetRow: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRow:
    """A text to read. `index` is its row in the dataset, from 0, independent of `offset`."""

    index: int
    text: str

    @property
    def characters(self) -> int:
        return len(self.text)


def stream_rows(
    records: Iterable[object],
    *,
    limit: int | None = None,
    offset: int = 0,
    require_gold: bool = True,
    reader: RowReader | None = None,
) -> Iterator[DatasetRow]:
    """Check `limit` rows. Unused columns are dropped.

    All rows are checked before the error for bad rows is raised; rows after the first bad row are not
    returned.

    Args:
        records: mappings; a record that is an `InvalidDataset` is a bad row.
        offset: the row number of the first record.
        require_gold: every answer must end with `#### N`, which the gsm8k scorers need.
        reader: turns records into rows; by default records have GSM8K's form.

    Raises:
        InvalidDataset: the first bad rows, with their fields.
    """

    def question(index: int, record: Mapping[str, Any]) -> DatasetRow:
        faults = list(_field_faults(record, GSM8K_COLUMNS))
        answer = record.get("answer")
        if require_gold and text_fault(answer) is None and not _has_gold(str(answer)):
            faults.append("answer does not end with a gold number (#### N)")
        if faults:
            raise _BadRow(faults)
        return DatasetRow(index=index, question=record["question"], answer=record["answer"])

    if reader is not None:
        return _checked(records, limit, offset, reader, "the columns of the task")
    return _checked(records, limit, offset, question, " and ".join(GSM8K_COLUMNS))


def stream_texts(
    records: Iterable[object], field: str, *, limit: int | None = None, offset: int = 0
) -> Iterator[TextRow]:
    """Check the column `field` of `limit` rows, as `stream_rows` does."""

    def text(index: int, record: Mapping[str, Any]) -> TextRow:
        faults = list(_field_faults(record, (field,)))
        if faults:
            raise _BadRow(faults)
        return TextRow(index=index, text=record[field])

    return _checked(records, limit, offset, text, field)


def read_rows(lines: Iterable[bytes], *, offset: int = 0, **options: Any) -> list[DatasetRow]:
    """The rows of lines of JSON from `offset` on, as `stream_rows` checks them."""
    return list(stream_rows(json_records(lines, start=offset), offset=offset, **options))


class _BadRow(InvalidDataset):
    """A row with one or several faults."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def _checked(
    records: Iterable[object],
    limit: int | None,
    offset: int,
    make: Callable[[int, Mapping[str, Any]], R],
    fields: str,
) -> Iterator[R]:
    """The rows up to the first bad row; then raise the error about all bad rows.

    Args:
        fields: the required columns, in words.
    """
    faults: list[str] = []
    count = held = unreported = 0
    chosen = records if limit is None else islice(records, min(limit, sys.maxsize))
    for index, record in enumerate(chosen, start=offset):
        found: Sequence[str] = ()
        try:
            if isinstance(record, InvalidDataset):
                raise record
            if not isinstance(record, Mapping):
                raise InvalidDataset(f"not a JSON object with {fields}")
            row = make(index, record)
        except _BadRow as error:
            found = error.faults
        except InvalidDataset as error:
            found = [error.message]
        if not found and not faults:
            count += 1
            held += row.characters
            if held > MAX_HELD_CHARS:
                raise InvalidDataset(
                    f"the rows hold more than {MAX_HELD_CHARS} characters together; choose fewer with offset "
                    "and limit",
                    param="dataset",
                )
            yield row
        room = max(0, MAX_REPORTED - len(faults))
        faults += [f"row {index}: {fault}" for fault in found[:room]]
        unreported += len(found[room:])
    if faults:
        more = f"; and {unreported} more" if unreported else ""
        raise InvalidDataset("; ".join(faults) + more, param="dataset")
    if not count:
        reason = (
            f"no rows at offset {offset}: the dataset ends before it" if offset else "the dataset has no rows"
        )
        raise InvalidDataset(reason, param="dataset")


def _field_faults(row: Mapping[str, object], fields: Sequence[str]) -> Iterator[str]:
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
