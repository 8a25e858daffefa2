"""Scoring of recorded completions, one JSON object per line. Memory holds one line and the ids.

Input: `{"id", "completion", "gold"}`, and `generated_tokens` for scorers of the length; other fields are
ignored. Output: `{"id", "scores": {scorer: {"answer", "correct"}}}`, with a `value` from 0 to 1 for scorers
whose verdict is not just right or wrong.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NoReturn

from actograph.contract.errors import ActographError, InvalidDataset, InvalidRequest
from actograph.contract.resources import Score
from actograph.scoring.scorers import Answered, ScorerSet
from actograph.statistics.metrics import Tally

_BOM = b"\xef\xbb\xbf"
#: metrics with the values 0 and 1 only
_RIGHT_OR_WRONG = ("exact_match", "includes")


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
        seen: set[str | int] = set()
        repeated: set[str | int] = set()
        for number, line in enumerate(stream, start=1):
            text = line.removeprefix(_BOM) if number == 1 else line
            if not text.strip():
                continue
            try:
                identifier, answered = _parse(text)
                yield self._score(identifier, answered)
            except ActographError as error:
                raise InvalidDataset(f"line {number}: {error.message}") from None
            if identifier in seen:
                repeated.add(identifier)
            seen.add(identifier)
        self.repeated_ids = len(repeated)
        if not seen:
            raise InvalidDataset("there are no completions")

    def _score(self, identifier: str | int, answered: Answered) -> str:
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
