"""Scorers of the gsm8k task, equal to those of lm-eval 0.4.13 (tasks/gsm8k/gsm8k.yaml, version 3).

A scorer extracts an answer from the completion and compares it with the whole reference
answer after both have been normalised; normalising also cuts the reference down to what
follows its `#### `.
"""

import re
from collections.abc import Iterable

from actograph.contract.resources import Score
from actograph.dataset_rows import GOLD

STRICT_MATCH = "exact_match,strict-match"
FLEXIBLE_EXTRACT = "exact_match,flexible-extract"

# Two characters or more of a price or decimal number, or else a plain whole number.
_NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_FINAL_STOP = re.compile(r"\.$")


def score(task: str, completion: str, target: str) -> dict[str, Score]:
    """Score one completion, already cut by `cut_at_stop`, against the row's whole answer.

    The value is 1.0 or 0.0; the answer is what the filter extracted, null where it found nothing.
    The first key is the task's own verdict.

    Raises:
        KeyError: for a task without scorers.
    """
    return {name: exact_match(extract(completion), target) for name, extract in _SCORERS[task].items()}


def cut_at_stop(completion: str, stop: Iterable[str]) -> str:
    """The completion before its first stop string.

    The strings are applied one after the other, as lm-eval does, which matters only where
    occurrences of two of them overlap.
    """
    for text in stop:
        if text:
            completion = completion.partition(text)[0]
    return completion


def strict_match(completion: str) -> str | None:
    """What follows the first `#### `."""
    found = GOLD.search(completion)
    return found[1] if found else None


def flexible_extract(completion: str) -> str | None:
    """The last thing that looks like a number, which may be mere punctuation such as `...`."""
    found = [match[0] for match in _NUMBER.finditer(completion)]
    return found[-1] if found else None


def exact_match(answer: str | None, target: str) -> Score:
    """1.0 where answer and target are equal once normalised, ignoring case."""
    matches = answer is not None and _normalise(answer) == _normalise(target)
    return Score(value=float(matches), answer=answer)


def _normalise(text: str) -> str:
    """lm-eval's regexes_to_ignore `,`, `\\$`, `(?s).*#### ` and `\\.$`, in that order, then ignore_case.

    The third is a partition here: as a regex it takes quadratic time on a long text.
    """
    text = text.replace(",", "").replace("$", "")
    text = text.rpartition("#### ")[2]
    return _FINAL_STOP.sub("", text).lower()


_SCORERS = {"gsm8k": {STRICT_MATCH: strict_match, FLEXIBLE_EXTRACT: flexible_extract}}
