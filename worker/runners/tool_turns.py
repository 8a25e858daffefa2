"""Turns of evaluation samples that may call tools."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from actograph.contract.resources.tool_use import ToolMessage, ToolUse, ToolUseEnd
from actograph.contract.specs import EvaluationSpec
from worker.evals.tool_dialogue import Messages, ToolFormat, tool_use
from worker.evals.tools import TOOLS
from worker.runners import text
from worker.runners.runner import FurtherTurn, Prompt


class ToolTurns:
    """Prompts of further turns, for one job."""

    def __init__(self, spec: EvaluationSpec, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises InvalidRequest if the model's chat template offers no tools."""
        tools = [TOOLS[name] for name in spec.tools]
        self._form = ToolFormat(tokenizer, tools, enable_thinking=spec.enable_thinking)
        self._tokenizer = tokenizer
        self._text = text.SpokenText(tokenizer)
        self._max_turns = spec.max_turns

    def first(self, messages: Sequence[Any]) -> Prompt:
        """The question, with the tools' descriptions."""
        return text.encode(self._tokenizer, self._form.render(messages), is_chat=True)

    def further(self, messages: Sequence[Any], turns: Sequence[Sequence[int]]) -> FurtherTurn | ToolUseEnd:
        """Next prompt after the given turns, or the reason for the end.

        Args:
            messages: the conversation before the first turn.

        Raises:
            InvalidRequest: the chat template refuses what the model wrote.
        """
        added: Messages = []
        before: Messages = []
        for turn in turns:
            said, results = self._form.after_turn(self._text.of(turn))
            if not said:
                return "answer"
            before = [*added, *said]
            added += [*said, *results]
        if len(turns) >= self._max_turns:
            return "max_turns"
        prompt = self.first([*messages, *added])
        return FurtherTurn(
            prompt=prompt,
            results_from=self._form.results_from(prompt.token_ids, [*messages, *before]),
        )

    def record(self, turns: Sequence[Sequence[int]], ended: ToolUseEnd) -> tuple[ToolUse, list[ToolMessage]]:
        """The record of the tools' use, and the turns and results as text."""
        return tool_use(self._form, [self._text.of(turn) for turn in turns], ended=ended)
