"""The filters and the metric of lm-eval 0.4.13's GSM8K tasks (tasks/gsm8k/*.yaml, version 3).

A filter extracts an answer from the completion. The metric normalises the answer and the reference and
compares them; of the reference only the text after `#### ` counts.
"""

import re

from evals.dataset_rows import GOLD

# the last character can be any but a line end: `The answer is 42` gives 4, as in lm-eval
_COT_ANSWER = re.compile(r"The answer is (-?[0-9.,]+).")

# two or more characters of a price or decimal number, or else a whole number
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
    """The last match of lm-eval's number pattern, which may be punctuation such as `...`."""
    last = None
    for match in _NUMBER.finditer(completion):
        last = match
    return last[0] if last else None


def exact_match(answer: str | None, target: str) -> bool:
    """True if answer and target are equal once normalised, ignoring case."""
    return answer is not None and _normalise(answer) == _normalise(target)


def _normalise(text: str) -> str:
    """Apply lm-eval's regexes_to_ignore `,`, `\\$`, `(?s).*#### ` and `\\.$`, then ignore_case.

    The third is a partition here: the regex takes quadratic time on long texts.
    """
    text = text.replace(",", "").replace("$", "")
    text = text.rpartition("#### ")[2]
    return _FINAL_STOP.sub("", text).lower()
