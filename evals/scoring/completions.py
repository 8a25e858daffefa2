"""Preparation of completions for scoring: stop strings, thoughts and ends of turns."""

import re
from collections.abc import Iterable

OPEN, CLOSE = "<think>", "</think>"
_THINK_TAG = re.compile(f"{OPEN}|{CLOSE}")
#: end-of-turn tokens that tokenizers may leave in the text
_TURN_END = re.compile(
    r"<\|(?:im_end|im_start|endoftext|eot_id|eom_id|end_of_text|start_header_id|end|return|user)\|>"
    r"|</s>|<end_of_turn>|<start_of_turn>|<eos>|<｜end▁of▁sentence｜>|<｜User｜>"
)
#: start of the assistant's turn, which recorded completions may contain
_TURN_BEGIN = re.compile(
    r"\s*(?:<\|im_start\|>\s*assistant\b|<\|start_header_id\|>\s*assistant\s*<\|end_header_id\|>"
    r"|<start_of_turn>\s*model\b)"
)


def cut_at_stop(completion: str, stop: Iterable[str]) -> str:
    """The completion before its first stop string.

    The strings are applied in order, as in lm-eval; the order only matters if two of them overlap.
    """
    for text in stop:
        if text:
            completion = completion.partition(text)[0]
    return completion


def without_thoughts(completion: str) -> str:
    """The completion without its think blocks.

    Text before a closing tag without an opening tag is a thought too, since a chat template may have opened
    it. So is the text after an opening tag without a closing tag.
    """
    kept: list[str] = []
    start, thinking = 0, False
    for tag in _THINK_TAG.finditer(completion):
        if tag[0] == OPEN:
            if not thinking:
                kept.append(completion[start : tag.start()])
            thinking = True
        else:
            if not thinking:
                kept.clear()
            start, thinking = tag.end(), False
    if not thinking:
        kept.append(completion[start:])
    return "".join(kept)


def cut_at_turn_end(completion: str) -> str:
    """Text before the first end-of-turn token, without the mark that begins the turn."""
    begun = _TURN_BEGIN.match(completion)
    start = begun.end() if begun else 0
    found = _TURN_END.search(completion, start)
    return completion[start : found.start() if found else None]
