"""Evaluations in which the calculator completes GSM8K's annotations: `<<48/2=` becomes `<<48/2=24>>`.

After Cobbe et al. 2021 (arXiv 2110.14168, appendix C): after an equals sign the calculator inserts the result
and the closing brackets, and the model writes on. A turn is the part up to an inserted result. The tokens so
far are kept as they are; only the inserted text is encoded.
"""

from collections.abc import Sequence
from dataclasses import replace

from actograph.contract.errors import InvalidRequest
from actograph.contract.job_specs import EvaluationSpec
from actograph.contract.resources import ToolMessage, ToolUse, ToolUseEnd
from actograph.contract.tool_calls import CALCULATION, annotation_call
from evals.calculator import MAX_CHARS
from evals.prompts import ChatMessages
from evals.tools import CALCULATOR, Called, ToolResult, record_of, run_call
from worker.engine.messages import TextEnd
from worker.runners import text
from worker.runners.runner import FurtherTurn, Prompt
from worker.text.tokenizer import Tokenizer, decode_exactly

#: a token has a byte at least
_DUE = TextEnd(pattern=CALCULATION.pattern, last="=", window=4 * MAX_CHARS + 8)
_CLOSE = ">>"


class AnnotationTurns:
    """Prompts of further turns, for one job."""

    def __init__(self, spec: EvaluationSpec, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tools = [CALCULATOR]
        self._enable_thinking = spec.enable_thinking
        self._max_turns = spec.max_turns
        self._max_tokens = spec.sampling.max_tokens
        self._text = text.SpokenText(tokenizer)

    def first(self, built: str | ChatMessages) -> Prompt:
        """The prompt of the first turn, which ends at a calculation."""
        prompt = text.encode_built(self._tokenizer, built, enable_thinking=self._enable_thinking)
        return replace(prompt, stop_at=_DUE)

    def further(
        self, built: str | ChatMessages, turns: Sequence[Sequence[int]], called: Called
    ) -> FurtherTurn | ToolUseEnd:
        """Next prompt after these turns, or the reason for the end.

        A failed calculation gets no result: the model goes on by itself.

        Raises:
            InvalidRequest: the tokenizer cannot write a result.
        """
        result = self._result(turns[-1])
        if result is None:
            return "answer"
        if len(turns) >= self._max_turns:
            return "max_turns"
        called.append([result])
        prompt = self.first(built)
        ids, inserted = list(prompt.token_ids), list[int]()
        for turn, [result] in zip(turns, called, strict=True):
            inserted = self._tokens_of(result, turn)
            ids += [*turn, *inserted]
        left = self._max_tokens - (len(ids) - len(prompt.token_ids))
        if left <= 0:
            return "length"
        return FurtherTurn(
            prompt=replace(prompt, token_ids=tuple(ids), max_tokens=left),
            results_from=len(ids) - len(inserted),
            continues=True,
        )

    def record(
        self, turns: Sequence[Sequence[int]], called: Called, ended: ToolUseEnd
    ) -> tuple[ToolUse, list[ToolMessage]]:
        """The record of the calculator's use, and the text in parts; the model saw no errors."""
        return record_of([self._text.of(turn) for turn in turns], called, ended)

    def _result(self, turn: Sequence[int]) -> ToolResult | None:
        """Result of the calculation at the end of a turn, with the closing brackets; None without one."""
        call = annotation_call(decode_exactly(self._tokenizer, turn))  # an end token would end the text
        if call is None:
            return None
        result = run_call(call, self._tools)
        return replace(result, malformed=True) if result.error else ToolResult(result.content + _CLOSE)

    def _tokens_of(self, result: ToolResult, turn: Sequence[int]) -> list[int]:
        """Tokens that the calculator inserts after a turn; empty for an error."""
        if result.error:
            return []
        said = result.content
        # encoded together with the text before it: some tokenizers begin a text with a space
        for before in ("=", self._text.of(turn)[-16:], ""):
            ids = self._encode(before + said)
            own = self._encode(before)
            if ids[: len(own)] != own:
                continue
            added = ids[len(own) :]
            if self._text.of([*turn, *added]) == self._text.of(turn) + said:
                return added
        raise InvalidRequest(
            f"the model's tokenizer cannot write {said!r} behind an equals sign; run the task without tools",
            param="tool_format",
        )

    def _encode(self, piece: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(piece, add_special_tokens=False)
        return ids
