"""Rows of a question-and-answer dataset in GSM8K's form: one JSON object per line.

Used where a dataset is submitted and again where it is run, so that a bad row is refused
before the job is queued. Source of the form: https://github.com/openai/grade-school-math.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

from actograph.contract.errors import InvalidDataset
from actograph.contract.specs import MAX_PROMPT_CHARS

MAX_LINE_BYTES = 4_000_000
MAX_REPORTED = 10

# An answer in GSM8K's form, as lm-eval's strict-match filter finds it in a completion.
GOLD = re.compile(r"#### (-?[0-9.,]+)")
_NUMBER = re.compile(r"-?[0-9.]*[0-9][0-9.]*")

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetRow:
    """One problem. `index` counts the dataset's rows from 0, whatever `offset` was."""

    index: int
    question: str
    answer: str


def read_rows(
    lines: Iterable[bytes], *, limit: int | None = None, offset: int = 0, require_gold: bool = True
) -> list[DatasetRow]:
    """Read `limit` rows after the first `offset`; rows outside that window are not examined.

    Blank lines do not count as rows, a UTF-8 byte order mark is tolerated and fields other
    than `question` and `answer` are dropped. `require_gold` asks that every answer ends with
    `#### N`: the gsm8k scorers could never find another one right. To read a file of unknown
    origin, pass `bounded_lines(stream)`.

    Raises:
        InvalidDataset: naming each of the first bad rows and its field.
    """

    def records() -> Iterator[object]:
        for line in islice(_nonblank(lines), offset, None if limit is None else offset + limit):
            yield _parse(line)

    return _collect(records(), offset=offset, require_gold=require_gold)


def check_rows(
    records: Iterable[object], *, limit: int | None = None, offset: int = 0, require_gold: bool = True
) -> list[DatasetRow]:
    """`read_rows` for rows that are Python mappings already.

    Raises:
        InvalidDataset: naming each of the first bad rows and its field.
    """
    window = islice(records, offset, None if limit is None else offset + limit)
    return _collect(window, offset=offset, require_gold=require_gold)


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


def _collect(records: Iterable[object], *, offset: int, require_gold: bool) -> list[DatasetRow]:
    rows: list[DatasetRow] = []
    faults: list[str] = []
    unreported = 0
    for index, record in enumerate(records, start=offset):
        found = list(_faults(record, require_gold=require_gold))
        if not found:
            assert isinstance(record, Mapping)
            # After a fault only the faults matter.
            if not faults:
                rows.append(DatasetRow(index=index, question=record["question"], answer=record["answer"]))
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


def _faults(record: object, *, require_gold: bool) -> Iterator[str]:
    if isinstance(record, InvalidDataset):
        yield record.message
        return
    if not isinstance(record, Mapping):
        yield "not a JSON object with question and answer"
        return
    for field in ("question", "answer"):
        if field not in record:
            yield f"{field} is missing"
        elif (fault := _text_fault(record[field])) is not None:
            yield f"{field} {fault}"
        elif field == "answer" and require_gold and not _has_gold(record[field]):
            yield "answer does not end with a gold number (#### N)"


def _text_fault(value: object) -> str | None:
    if not isinstance(value, str):
        return "is not a string"
    if not value.strip():
        return "is empty"
    if len(value) > MAX_PROMPT_CHARS:
        return f"is longer than {MAX_PROMPT_CHARS} characters"
    # Neither can be stored in the index or encoded by a tokenizer.
    if "\0" in value:
        return "contains a NUL character"
    if any("\ud800" <= char <= "\udfff" for char in value):
        return "contains a lone surrogate, which is not Unicode text"
    return None


def _has_gold(answer: str) -> bool:
    """Whether the answer ends with a number that a completion can match once both are normalised."""
    _, marker, number = answer.rpartition("#### ")
    number = number.replace(",", "").replace("$", "").removesuffix(".")
    return bool(marker) and _NUMBER.fullmatch(number) is not None
