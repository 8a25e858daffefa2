"""Segments of a generation: thought, answer, tool call.

Qwen3, DeepSeek-R1 and others mark a thought with `<think>` and `</think>` and a call with `<tool_call>` and
`</tool_call>`, usually as single tokens. If a tokenizer spells a mark with several tokens, the last of them
counts as the mark.

A token's segment depends on earlier tokens only, so rows can be selected during generation. A mark belongs to
the segment that it opens or closes. An unclosed thought lasts to the end. A closing mark without an opening
one is part of the answer. If a prompt ends in an opening mark (the template starts the thought) or in a begun
call (`<tool_call>` and `{`), the generation begins inside that segment.
"""

from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from actograph.contract.row_selection import Segment
from worker.text.token_names import TokenNames
from worker.text.tokenizer import Tokenizer, decode_exactly, special_ids

ANSWER = "answer"
_NAMES = ("think", "tool_call")
_ANNOTATION_MARKS = {"<<": ("tool_call", True), ">>": ("tool_call", False), "\n": ("tool_call", False)}


class Markup:
    """Marks of segments, as a tokenizer spells them.

    Args:
        annotations: GSM8K's calculations, `<<48/2=24>>`, are tool calls; an unclosed one ends with its line.
    """

    def __init__(self, tokenizer: Tokenizer, *, annotations: bool = False) -> None:
        self._tokenizer, self.annotations = tokenizer, annotations
        texts = {f"<{name}>": (name, True) for name in _NAMES}
        texts |= {f"</{name}>": (name, False) for name in _NAMES}
        #: token id -> (segment, whether it opens)
        self._tokens: dict[int, tuple[str, bool]] = {}
        #: the same for marks that take several tokens, by their text
        self._texts: dict[str, tuple[str, bool]] = {}
        for text, mark in texts.items():
            ids = tokenizer.encode(text, add_special_tokens=False)
            if len(ids) == 1 and self._decode(ids).strip() == text:
                self._tokens[ids[0]] = mark
            else:
                self._texts[text] = mark
        if annotations:  # by text only: many tokens contain them
            self._texts |= _ANNOTATION_MARKS
        self._endings = {text[-1] for text in self._texts}
        #: between turns
        self._boundaries = special_ids(tokenizer) - self._tokens.keys()
        # every token carries at least one byte
        self._window = max((len(text) for text in self._texts), default=0) + 4
        self._may_end: dict[int, bool] = {}

    def mark(self, ids: Sequence[int]) -> tuple[str, bool] | None:
        """The mark that ends with the last of these tokens: (segment, whether it opens)."""
        found = self._tokens.get(ids[-1])
        if found is not None or not self._texts or not self._ends_a_mark(ids[-1]):
            return found
        tail = ids[-self._window :]
        now, before = self._decode(tail), self._decode(tail[:-1])
        completed = [t for t in self._texts if now.count(t) > before.count(t)]
        return self._texts[max(completed, key=now.rfind)] if completed else None

    def texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token; a character of several tokens is in the last of them."""
        decoder, texts = getincrementaldecoder("utf-8")("replace"), list[str]()
        for token in ids:
            name, spelled = self._names.of(token)
            texts.append(decoder.decode(name.encode(errors="replace") if spelled is None else bytes(spelled)))
        if rest := decoder.decode(b"", final=True):
            texts[-1] += rest
        return texts

    @cached_property
    def _names(self) -> TokenNames:
        return TokenNames(self._tokenizer)

    def open_at_end(self, prompt_ids: Sequence[int]) -> str | None:
        """The segment that a prompt leaves open: its last mark opens one, or it ends in a begun call.

        The search stops at the special token before the last turn.
        """
        for stop in range(len(prompt_ids), 0, -1):
            found = self.mark(prompt_ids[max(0, stop - self._window - 8) : stop])
            if found is not None:
                name, opens = found
                rest = self._decode(prompt_ids[stop:]).strip()
                goes_on = name == "tool_call" and rest.startswith("{")
                return name if opens and (goes_on or not rest) else None
            if prompt_ids[stop - 1] in self._boundaries:
                return None
        return None

    def _ends_a_mark(self, token: int) -> bool:
        if token not in self._may_end:
            text = self._decode([token])
            self._may_end[token] = any(ending in text for ending in self._endings)
        return self._may_end[token]

    def _decode(self, ids: Sequence[int]) -> str:
        return decode_exactly(self._tokenizer, ids)


def markup_of(spec: Mapping[str, Any], tokenizer: Tokenizer) -> Markup:
    """Segment markers of a stored job spec."""
    return Markup(tokenizer, annotations=spec.get("tool_format") == "annotations")


class SegmentFollower:
    """Names the segment of each generated token of one sample, in their order."""

    def __init__(self, markup: Markup, prompt_ids: Sequence[int]) -> None:
        self._markup = markup
        self._ids: list[int] = []
        self._open = [markup.open_at_end(prompt_ids) or ANSWER]

    def next(self, token_id: int) -> str:
        self._ids.append(token_id)
        mark = self._markup.mark(self._ids)
        if mark is None:
            return self._open[-1]
        name, opens = mark
        if opens:
            self._open.append(name)
            return name
        if name not in self._open:
            return self._open[-1]
        while self._open.pop() != name:  # what was opened inside ends with it
            pass
        self._open = self._open or [ANSWER]
        return name


def segments(markup: Markup, prompt_ids: Sequence[int], generated_ids: Sequence[int]) -> list[Segment]:
    """Segments of one sample without gaps: the prompt, then the generated tokens."""
    follower = SegmentFollower(markup, prompt_ids)
    names = ["prompt"] * len(prompt_ids) + [follower.next(token) for token in generated_ids]
    return list(runs(names))


def runs(names: Sequence[str]) -> Iterator[Segment]:
    """Join tokens of one name to segments."""
    start = 0
    for name, run in groupby(names):
        stop = start + len(list(run))
        yield Segment(name=name, start=start, stop=stop)
        start = stop
