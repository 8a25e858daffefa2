"""Rows of a dataset: questions and answers in GSM8K's form, rows of your own task, or texts.

The API reads a dataset at submission, so that it refuses bad rows before the job is queued; the worker reads
it again. Source of GSM8K's form: https://github.com/openai/grade-school-math.

Records are read one at a time, and only the task's columns are kept. Large records use the process's memory
budget during decoding.
"""

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, TypeVar, runtime_checkable

from actograph.contract.errors import InvalidDataset
from actograph.contract.specs import MAX_PROMPT_CHARS
from actograph.datasets import memory_budget
from actograph.datasets.dataset_lines import MAX_LINE_BYTES, MAX_ROW_VALUES, Lines, json_cost

MAX_REPORTED = 10
#: of all rows of a job together
MAX_HELD_CHARS = 1 << 29
#: a decoder pauses after this much work, for the same time and at most this long
_WORK_SECONDS, _PAUSE_SECONDS = 0.005, 0.05
#: columns of GSM8K's form
GSM8K_COLUMNS = ("question", "answer")

#: an answer in GSM8K's form, by lm-eval's strict-match filter
GOLD = re.compile(r"#### (-?[0-9.,]+)")
_NUMBER = re.compile(r"-?[0-9.]*[0-9][0-9.]*")

_BOM = b"\xef\xbb\xbf"

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


@runtime_checkable
class CanSkip(Protocol):
    """Records that can be read from any row on."""

    def from_row(self, start: int, /) -> Iterator[Any]: ...


def stream_rows(
    records: Iterable[object],
    *,
    limit: int | None = None,
    offset: int = 0,
    require_gold: bool = True,
    reader: RowReader | None = None,
) -> Iterator[DatasetRow]:
    """Read `limit` rows after the first `offset`; other rows are not checked.

    Unused columns are dropped. All rows are checked before the error for bad rows is raised; rows after the
    first bad row are not returned.

    Args:
        records: mappings; a record that is an `InvalidDataset` is a bad row.
        require_gold: every answer must end with `#### N`, which the gsm8k scorers need.
        reader: turns records into rows; by default records have GSM8K's form.

    Raises:
        InvalidDataset: the first bad rows, with their fields.
        ServiceBusy: other readers use the memory that a large row needs.
    """
    chosen = _window(records, limit, offset)
    if reader is not None:
        return _checked(chosen, offset, reader, "the columns of the task")

    def question(index: int, record: Mapping[str, Any]) -> DatasetRow:
        faults = list(_field_faults(record, GSM8K_COLUMNS))
        answer = record.get("answer")
        if require_gold and text_fault(answer) is None and not _has_gold(str(answer)):
            faults.append("answer does not end with a gold number (#### N)")
        if faults:
            raise _BadRow(faults)
        return DatasetRow(index=index, question=record["question"], answer=record["answer"])

    return _checked(chosen, offset, question, " and ".join(GSM8K_COLUMNS))


def stream_texts(
    records: Iterable[object], field: str, *, limit: int | None = None, offset: int = 0
) -> Iterator[TextRow]:
    """Read the column `field` of `limit` rows after the first `offset`, as `stream_rows` does.

    Raises:
        InvalidDataset: the first bad rows.
        ServiceBusy: other readers use the memory that a large row needs.
    """

    def text(index: int, record: Mapping[str, Any]) -> TextRow:
        faults = list(_field_faults(record, (field,)))
        if faults:
            raise _BadRow(faults)
        return TextRow(index=index, text=record[field])

    return _checked(_window(records, limit, offset), offset, text, field)


def check_rows(records: Iterable[object], **options: Any) -> list[DatasetRow]:
    """The rows of `stream_rows` as a list."""
    return list(stream_rows(records, **options))


def check_texts(records: Iterable[object], field: str, **options: Any) -> list[TextRow]:
    """The rows of `stream_texts` as a list."""
    return list(stream_texts(records, field, **options))


def read_rows(lines: Iterable[bytes], **options: Any) -> list[DatasetRow]:
    """The rows of `stream_rows` for lines of JSON, as a list."""
    return check_rows(JsonRecords(lines), **options)


class JsonRecords:
    """The values of lines of JSON, read once.

    Blank lines and a UTF-8 byte order mark are skipped. A line that cannot be decoded gives an
    `InvalidDataset`. For files of unknown origin, pass `Lines`.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)

    def __iter__(self) -> Iterator[object]:
        return self.from_row(0)

    def from_row(self, start: int, /) -> Iterator[object]:
        """The values from this row on; earlier lines are not decoded."""
        return _decoded(islice(_nonblank(self._lines), min(start, sys.maxsize), None))


class _BadRow(InvalidDataset):
    """A row with one or several faults."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def _nonblank(lines: Iterator[bytes]) -> Iterator[bytes]:
    is_first = True
    while True:
        if isinstance(lines, Lines):
            lines.skip_blank()
        line = next(lines, None)
        if line is None:
            return
        text = line.removeprefix(_BOM) if is_first else line
        is_first = False
        if len(text) > MAX_LINE_BYTES or text.strip():
            yield text


def _decoded(lines: Iterator[bytes]) -> Iterator[object]:
    """The JSON value of each line, or an `InvalidDataset` with the reason why it cannot be read."""
    pace = _Pace()
    for line in lines:
        cost = json_cost(line)
        if len(line) > MAX_LINE_BYTES:
            yield InvalidDataset(f"the line is longer than {MAX_LINE_BYTES} bytes")
        elif cost.values > MAX_ROW_VALUES:
            yield InvalidDataset(f"the line holds more than {MAX_ROW_VALUES} values")
        else:
            with memory_budget.DATASETS.hold(cost.bytes, "a row of the dataset"):
                with pace.work():
                    record = _parse(line)
                yield record


class _Pace:
    """Shares the interpreter with other threads: decoding a line holds it until the line ends.

    Only one thread decodes at a time, and it pauses after a few milliseconds of work.
    """

    _turn = threading.Lock()

    def __init__(self) -> None:
        self._worked = 0.0

    @contextmanager
    def work(self) -> Iterator[None]:
        with self._turn:
            began = time.perf_counter()
            try:
                yield
            finally:
                self._worked += time.perf_counter() - began
                if self._worked > _WORK_SECONDS:
                    time.sleep(min(self._worked, _PAUSE_SECONDS))
                    self._worked = 0.0


def _parse(line: bytes) -> object:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return InvalidDataset(f"not UTF-8 (byte {error.start})")
    except json.JSONDecodeError as error:
        return InvalidDataset(f"not JSON: {error.msg} (column {error.colno})")
    except (ValueError, RecursionError):
        # a number with thousands of digits, or too many nested brackets
        return InvalidDataset("not valid JSON here: a number is too long, or the nesting too deep")


def _window(records: Iterable[object], limit: int | None, offset: int) -> Iterator[object]:
    if isinstance(records, CanSkip):
        records, offset = records.from_row(offset), 0
    # the largest number for islice
    stop = None if limit is None else min(offset + limit, sys.maxsize)
    return islice(records, min(offset, sys.maxsize), stop)


def _checked(
    records: Iterator[object], offset: int, make: Callable[[int, Mapping[str, Any]], R], fields: str
) -> Iterator[R]:
    """The rows up to the first bad row; then raise the error about all bad rows.

    Args:
        fields: the required columns, in words.
    """
    faults: list[str] = []
    count = held = unreported = 0
    for index, record in enumerate(records, start=offset):
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
