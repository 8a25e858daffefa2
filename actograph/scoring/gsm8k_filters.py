"""The filters and the metric of lm-eval 0.4.13's GSM8K tasks (tasks/gsm8k/*.yaml, version 3).

A filter extracts an answer from the completion; the metric compares it with the whole reference
answer after both have been normalised, which also cuts the reference down to what follows its
`#### `.
"""

import re

from actograph.datasets.dataset_rows import GOLD

# the last character is any but a line's end: `The answer is 42` gives 4, here as there
_COT_ANSWER = re.compile(r"The answer is (-?[0-9.,]+).")

# Two characters or more of a price or decimal number, or else a plain whole number.
_NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_FINAL_STOP = re.compile(r"\.$")


def strict_match(completion: str) -> str | None:
    """Extract the text after the first `#### ` (gsm8k)."""
    found = GOLD.search(completion)
    return found[1] if found else None


def strict_match_cot(completion: str) -> str | None:
    """Extract the text after the first `The answer is ` (gsm8k_cot, gsm8k_cot_zeroshot)."""
    found = _COT_ANSWER.search(completion)
    return found[1] if found else None


def flexible_extract(completion: str) -> str | None:
    """The last thing that looks like a number, which may be mere punctuation such as `...`."""
    last = None
    for match in _NUMBER.finditer(completion):
        last = match
    return last[0] if last else None


def exact_match(answer: str | None, target: str) -> bool:
    """Whether answer and target are equal once normalised, ignoring case."""
    return answer is not None and _normalise(answer) == _normalise(target)


def _normalise(text: str) -> str:
    """lm-eval's regexes_to_ignore `,`, `\\$`, `(?s).*#### ` and `\\.$`, in that order, then ignore_case.

    The third is a partition here: as a regex it takes quadratic time on a long text.
    """
    text = text.replace(",", "").replace("$", "")
    text = text.rpartition("#### ")[2]
    return _FINAL_STOP.sub("", text).lower()
