"""Rows of a dataset, one JSON object per line: questions and answers in GSM8K's form, or texts.

Used where a dataset is submitted and again where it is run, so that a bad row is refused
before the job is queued. Source of the form: https://github.com/openai/grade-school-math.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, BinaryIO, Protocol, TypeVar, runtime_checkable

from actograph.contract.errors import InvalidDataset
from actograph.contract.specs import MAX_PROMPT_CHARS

MAX_LINE_BYTES = 4_000_000
MAX_REPORTED = 10
#: of the rows of one job, which are in memory together
MAX_HELD_CHARS = 1 << 29
#: what rows of GSM8K's form have
GSM8K_COLUMNS = ("question", "answer")

# An answer in GSM8K's form, as lm-eval's strict-match filter finds it in a completion.
GOLD = re.compile(r"#### (-?[0-9.,]+)")
_NUMBER = re.compile(r"-?[0-9.]*[0-9][0-9.]*")

_BOM = b"\xef\xbb\xbf"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetRow:
    """One problem. `index` counts the dataset's rows from 0, whatever `offset` was."""

    index: int
    question: str
    answer: str
    #: what else the prompt of a task of one's own uses
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def input(self) -> dict[str, Any]:
        """The row as a sample keeps it."""
        kept: dict[str, Any] = {"question": self.question, "answer": self.answer}
        return kept | ({"columns": dict(self.columns)} if self.columns else {})

    @classmethod
    def from_input(cls, index: int, given: Mapping[str, Any]) -> "DatasetRow":
        return cls(
            index=index,
            question=given["question"],
            answer=given["answer"],
            columns=given.get("columns", {}),
        )


#: makes a row of a record, or raises InvalidDataset; None reads GSM8K's own form
RowReader = Callable[[int, Mapping[str, Any]], DatasetRow]


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRow:
    """One text to read. `index` counts the dataset's rows from 0, whatever `offset` was."""

    index: int
    text: str


@runtime_checkable
class CanSkip(Protocol):
    """Records that can be read from a row on without reading those before it."""

    def from_row(self, start: int, /) -> Iterator[Any]: ...


def read_rows(
    lines: Iterable[bytes],
    *,
    limit: int | None = None,
    offset: int = 0,
    require_gold: bool = True,
    reader: RowReader | None = None,
) -> list[DatasetRow]:
    """Read `limit` rows after the first `offset`; rows outside that window are not examined.

    Blank lines do not count as rows, a UTF-8 byte order mark is tolerated and fields other
    than `question` and `answer` are dropped. `require_gold` asks that every answer ends with
    `#### N`: the gsm8k scorers could never find another one right. `reader` reads rows of another
    form. To read a file of unknown origin, pass `bounded_lines(stream)`.

    Raises:
        InvalidDataset: naming each of the first bad rows and its field.
    """
    records = _records(lines, limit, offset)
    return _read(records, offset, reader) if reader else _questions(records, offset, require_gold)


def check_rows(
    records: Iterable[object],
    *,
    limit: int | None = None,
    offset: int = 0,
    require_gold: bool = True,
    reader: RowReader | None = None,
) -> list[DatasetRow]:
    """`read_rows` for rows that are Python mappings already.

    Raises:
        InvalidDataset: naming each of the first bad rows and its field.
    """
    chosen = _window(records, limit, offset)
    return _read(chosen, offset, reader) if reader else _questions(chosen, offset, require_gold)


def read_texts(
    lines: Iterable[bytes], field: str, *, limit: int | None = None, offset: int = 0
) -> list[TextRow]:
    """`field` of `limit` rows after the first `offset`, read as `read_rows` reads; other fields are dropped.

    Raises:
        InvalidDataset: naming each of the first bad rows.
    """
    return _texts(_records(lines, limit, offset), field, offset)


def check_texts(
    records: Iterable[object], field: str, *, limit: int | None = None, offset: int = 0
) -> list[TextRow]:
    """`read_texts` for rows that are Python mappings already.

    Raises:
        InvalidDataset: naming each of the first bad rows.
    """
    return _texts(_window(records, limit, offset), field, offset)


def bounded_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of `stream`, none of which is read past `MAX_LINE_BYTES` + 1 bytes.

    A longer line comes out cut, still long enough for `read_rows` to refuse it, and the
    rest of it is skipped; memory stays bounded by one line.
    """
    while line := stream.readline(MAX_LINE_BYTES + 1):
        yield line
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE_BYTES + 1)
            if not line:
                return


def _nonblank(lines: Iterable[bytes]) -> Iterator[bytes]:
    for number, line in enumerate(lines):
        text = line.removeprefix(_BOM) if number == 0 else line
        if len(text) > MAX_LINE_BYTES or text.strip():
            yield text


def _parse(line: bytes) -> object:
    """The line's JSON value, or the reason (an `InvalidDataset`) why there is none."""
    if len(line) > MAX_LINE_BYTES:
        return InvalidDataset(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return InvalidDataset(f"not UTF-8 (byte {error.start})")
    except json.JSONDecodeError as error:
        return InvalidDataset(f"not JSON: {error.msg} (column {error.colno})")
    except (ValueError, RecursionError):
        # A number of thousands of digits, or brackets nested beyond the parser's depth.
        return InvalidDataset("not JSON that can be read: a number too long or nesting too deep")


def _records(lines: Iterable[bytes], limit: int | None, offset: int) -> Iterator[object]:
    return (_parse(line) for line in _window(_nonblank(lines), limit, offset))


def _window(rows: Iterable[T], limit: int | None, offset: int) -> Iterator[T]:
    if isinstance(rows, CanSkip):
        rows, offset = rows.from_row(offset), 0
    # islice counts no further than the machine does
    stop = None if limit is None else min(offset + limit, sys.maxsize)
    return islice(rows, min(offset, sys.maxsize), stop)


def _read(records: Iterator[object], offset: int, reader: RowReader) -> list[DatasetRow]:
    made: list[DatasetRow] = []

    def faults(row: Mapping[str, object]) -> Iterator[str]:
        try:
            made.append(reader(offset, row))
        except InvalidDataset as error:
            yield error.message

    # where any row has a fault nothing comes back, so that both lists are of the same rows
    found = _collect(records, offset, faults, "the columns of the task")
    return [replace(row, index=index) for (index, _), row in zip(found, made, strict=True)]


def _questions(records: Iterator[object], offset: int, require_gold: bool) -> list[DatasetRow]:
    def faults(row: Mapping[str, object]) -> Iterator[str]:
        yield from _field_faults(row, GSM8K_COLUMNS)
        answer = row.get("answer")
        if require_gold and text_fault(answer) is None and not _has_gold(str(answer)):
            yield "answer does not end with a gold number (#### N)"

    return [
        DatasetRow(index=index, question=row["question"], answer=row["answer"])
        for index, row in _collect(records, offset, faults, " and ".join(GSM8K_COLUMNS))
    ]


def _texts(records: Iterator[object], field: str, offset: int) -> list[TextRow]:
    found = _collect(records, offset, lambda row: _field_faults(row, (field,)), field)
    return [TextRow(index=index, text=row[field]) for index, row in found]


def _collect(
    records: Iterator[object],
    offset: int,
    faults_of: Callable[[Mapping[str, object]], Iterable[str]],
    fields: str,
) -> list[tuple[int, Mapping[str, Any]]]:
    """The rows with their places, once all of them are known to be good.

    Args:
        fields: that a row must have, in words.
    """
    rows: list[tuple[int, Mapping[str, Any]]] = []
    faults: list[str] = []
    held = 0
    unreported = 0
    for index, record in enumerate(records, start=offset):
        if isinstance(record, InvalidDataset):
            found = [record.message]
        elif isinstance(record, Mapping):
            found = list(faults_of(record))
        else:
            found = [f"not a JSON object with {fields}"]
        if not found:
            # After a fault only the faults matter.
            if not faults:
                assert isinstance(record, Mapping)
                rows.append((index, record))
                held += sum(len(value) for value in record.values() if isinstance(value, str))
                if held > MAX_HELD_CHARS:
                    raise InvalidDataset(
                        f"the rows hold more than {MAX_HELD_CHARS} characters together; choose fewer with "
                        "offset and limit",
                        param="dataset",
                    )
            continue
        room = max(0, MAX_REPORTED - len(faults))
        faults += [f"row {index}: {fault}" for fault in found[:room]]
        unreported += len(found[room:])
    if faults:
        more = f"; and {unreported} more" if unreported else ""
        raise InvalidDataset("; ".join(faults) + more, param="dataset")
    if not rows:
        reason = (
            f"no rows at offset {offset}: the dataset ends before it" if offset else "the dataset has no rows"
        )
        raise InvalidDataset(reason, param="dataset")
    return rows


def _field_faults(row: Mapping[str, object], fields: Sequence[str]) -> Iterator[str]:
    for name in fields:
        if name not in row:
            yield f"{name} is missing"
        elif (fault := text_fault(row[name])) is not None:
            yield f"{name} {fault}"


def text_fault(value: object) -> str | None:
    """Why a value cannot be a prompt's or an answer's text; None where it can."""
    if not isinstance(value, str):
        return "is not a string"
    if not value.strip():
        return "is empty"
    if len(value) > MAX_PROMPT_CHARS:
        return f"is longer than {MAX_PROMPT_CHARS} characters"
    # Neither can be stored in the index or encoded by a tokenizer.
    if "\0" in value:
        return "contains a NUL character"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "contains a lone surrogate, which is not Unicode text"
    return None


def _has_gold(answer: str) -> bool:
    """Whether the answer ends with a number that a completion can match once both are normalised."""
    _, marker, number = answer.rpartition("#### ")
    number = number.replace(",", "").replace("$", "").removesuffix(".")
    return bool(marker) and _NUMBER.fullmatch(number) is not None
