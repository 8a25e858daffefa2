"""Evaluations in which the calculator completes GSM8K's annotations: `<<48/2=` becomes `<<48/2=24>>`.

After Cobbe et al. 2021 (arXiv 2110.14168, appendix C): when the model has written the equals sign, the
result and the closing brackets are put in, and it writes on. The text is one; a turn here is the part
that ends where a result is due. Tokens are never made anew from text: a turn's prompt is the tokens so
far and those of the result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from actograph.contract.chat.tool_calls import CALCULATION, annotation_call
from actograph.contract.errors import InvalidRequest
from actograph.contract.resources.tool_use import ToolMessage, ToolUse, ToolUseEnd
from actograph.contract.specs import EvaluationSpec
from actograph.scoring.calculator import MAX_CHARS
from worker.engine.requests import TextEnd
from worker.engine.tokens.stopping import decode_exactly
from worker.evals.tools import Tool, ToolResult, run_call
from worker.runners import text
from worker.runners.runner import FurtherTurn, Prompt

#: a token has a byte at least
_DUE = TextEnd(CALCULATION, last="=", window=4 * MAX_CHARS + 8)
_CLOSE = ">>"


class AnnotationTurns:
    """Prompts of further turns, for one job."""

    def __init__(
        self, spec: EvaluationSpec, tokenizer: PreTrainedTokenizerBase, tools: Mapping[str, Tool]
    ) -> None:
        self._tokenizer = tokenizer
        self._tools = [tools[name] for name in spec.tools]
        self._max_turns = spec.max_turns
        self._max_tokens = spec.sampling.max_tokens
        self._text = text.SpokenText(tokenizer)

    def first(self, prompt: Prompt) -> Prompt:
        """The prompt of the first turn; the model is interrupted at a calculation."""
        return replace(prompt, stop_at=_DUE)

    def further(self, prompt: Prompt, turns: Sequence[Sequence[int]]) -> FurtherTurn | ToolUseEnd:
        """Next prompt after the given turns, or the reason for the end.

        A calculation that cannot be worked out gets no result: the model goes on by itself.

        Raises:
            InvalidRequest: the tokenizer cannot write a result.
        """
        if self._result(turns[-1]) is None:
            return "answer"
        if len(turns) >= self._max_turns:
            return "max_turns"
        ids = list(prompt.token_ids)
        given: list[int] = []
        for turn in turns:
            given = self._tokens_of_result(turn)
            ids += [*turn, *given]
        left = self._max_tokens - (len(ids) - len(prompt.token_ids))
        if left <= 0:
            return "length"
        return FurtherTurn(
            prompt=replace(prompt, token_ids=tuple(ids), max_tokens=left, stop_at=_DUE),
            results_from=len(ids) - len(given),
            continues=True,
        )

    def record(self, turns: Sequence[Sequence[int]], ended: ToolUseEnd) -> tuple[ToolUse, list[ToolMessage]]:
        """The record of the calculator's use, and the text in parts; the model saw no reasons of failures."""
        messages: list[ToolMessage] = []
        calls = errors = 0
        for number, turn in enumerate(turns):
            messages.append(ToolMessage(role="assistant", content=self._text.of(turn)))
            result = self._result(turn)
            if result is None or number == len(turns) - 1:
                continue  # what the last turn calls was not run
            calls += 1
            errors += result.error
            content = result.content if result.error else result.content + _CLOSE
            messages.append(ToolMessage(role="tool", content=content, error=result.error))
        use = ToolUse(turns=len(turns), calls=calls, errors=errors, malformed=errors, ended=ended)
        return use, messages

    def _result(self, turn: Sequence[int]) -> ToolResult | None:
        """Result of the calculation at the end of a turn; None without one."""
        call = annotation_call(decode_exactly(self._tokenizer, turn))  # an end token ends the text otherwise
        return None if call is None else run_call(call, self._tools)

    def _tokens_of_result(self, turn: Sequence[int]) -> list[int]:
        """Tokens that the calculator inserts after a turn; empty without a result."""
        result = self._result(turn)
        if result is None or result.error:
            return []
        said = result.content + _CLOSE
        # behind the tokens that it follows: some tokenizers begin a text with a space of their own
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
