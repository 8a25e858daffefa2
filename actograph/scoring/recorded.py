"""Scoring of recorded completions, one JSON object per line, in memory bounded by one line.

Input: `{"id", "completion", "gold"}`, and `generated_tokens` for scorers of the length; other fields are
ignored. Output: `{"id", "scores": {scorer: {"answer", "correct"}}}`, with a `value` from 0 to 1 for scorers
whose verdict is not just right or wrong.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from decimal import Decimal
from typing import Any, NoReturn

from actograph.contract.errors import ActographError, InvalidDataset, InvalidRequest
from actograph.contract.resources import Score
from actograph.scoring.scorers import Answered, ScorerSet
from actograph.statistics.metrics import Tally

_BOM = b"\xef\xbb\xbf"
#: metrics with the values 0 and 1 only
_RIGHT_OR_WRONG = ("exact_match", "includes")


class _Ids:
    """Counts repeated ids, on disk so that memory does not grow with the lines."""

    def __init__(self) -> None:
        # "" is a temporary database, which SQLite keeps in memory up to its cache and then in a file
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("CREATE TABLE ids (id TEXT PRIMARY KEY, lines INT) WITHOUT ROWID")
        self._database.execute("BEGIN")

    def add(self, identifier: str | int) -> None:
        # as JSON, in which 1 and "1" differ and a lone surrogate can be stored
        self._database.execute(
            "INSERT INTO ids VALUES (?, 1) ON CONFLICT DO UPDATE SET lines = lines + 1",
            (json.dumps(identifier),),
        )

    def repeated(self) -> int:
        (count,) = self._database.execute("SELECT count(*) FROM ids WHERE lines > 1").fetchone()
        return int(count)

    def close(self) -> None:
        self._database.close()


class RecordedScores:
    """Scores line by line, with totals in `tallies`.

    Several lines may have the same id, for example several answers of a model. Each is scored by itself;
    `repeated_ids` counts such ids once all lines have been read.
    """

    def __init__(self, scorers: ScorerSet, names: Mapping[str, str]) -> None:
        """`names`: metric key -> name of the scorer in the output."""
        self._scorers = scorers
        self._names = names
        self.tallies = {name: Tally() for name in names.values()}
        self.repeated_ids = 0

    def lines(self, stream: Iterable[bytes]) -> Iterator[str]:
        """The output lines of `stream`, without line ends. Blank lines are skipped.

        Raises:
            InvalidDataset: a line is invalid (the message has its number), or there are no lines.
        """
        found = False
        with closing(_Ids()) as ids:
            for number, line in enumerate(stream, start=1):
                text = line.removeprefix(_BOM) if number == 1 else line
                if not text.strip():
                    continue
                found = True
                try:
                    record = _parse(text)
                    yield self._score(record)
                except ActographError as error:
                    raise InvalidDataset(f"line {number}: {error.message}") from None
                ids.add(record[0])
            self.repeated_ids = ids.repeated()
        if not found:
            raise InvalidDataset("there are no completions")

    def _score(self, record: tuple[str | int, Answered]) -> str:
        identifier, answered = record
        scores = self._scorers.score(answered)
        out: dict[str, Any] = {}
        for key, score in scores.items():
            name = self._names[key]
            self.tallies[name].add(score)
            out[name] = _verdict(key, score)
        return json.dumps({"id": identifier, "scores": out})


def _verdict(key: str, score: Score) -> dict[str, Any]:
    verdict: dict[str, Any] = {"answer": score.answer, "correct": score.value == 1.0}
    if key.partition(",")[0] not in _RIGHT_OR_WRONG:
        verdict["value"] = score.value
    return verdict


def _parse(line: bytes) -> tuple[str | int, Answered]:
    try:
        record = json.loads(line.decode("utf-8"), parse_float=Decimal, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise InvalidDataset(f"not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise InvalidDataset(f"not JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError):
        raise InvalidDataset("not valid JSON here: a number is too long, or the nesting too deep") from None
    if not isinstance(record, dict):
        raise InvalidDataset("not a JSON object with id, completion and gold")
    missing = [field for field in ("id", "completion", "gold") if field not in record]
    if missing:
        raise InvalidDataset(f"{' and '.join(missing)} missing")
    identifier, completion, gold = record["id"], record["completion"], record["gold"]
    if isinstance(identifier, bool) or not isinstance(identifier, str | int):
        raise InvalidDataset("id is neither a string nor a whole number")
    if not isinstance(completion, str):
        raise InvalidDataset("completion is not a string")
    if isinstance(gold, bool) or not isinstance(gold, str | int | Decimal):
        raise InvalidDataset("gold is neither a string nor a number")
    tokens = record.get("generated_tokens")
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0):
        raise InvalidDataset("generated_tokens is not a whole number")
    target = gold if isinstance(gold, str) else format(gold, "f") if isinstance(gold, Decimal) else str(gold)
    return identifier, Answered(completion=completion, target=target, generated_tokens=tokens)


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"{name} is not JSON")
