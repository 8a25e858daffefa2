"""Turns of evaluation samples that may call tools, in the form of the model's chat template.

A turn with calls is followed by their results; a turn without calls is the answer. Before each turn the chat
template renders the whole conversation anew, as chat services do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from actograph.contract.errors import InvalidRequest
from actograph.contract.job_specs import EvaluationSpec
from actograph.contract.resources import ToolMessage, ToolUse, ToolUseEnd
from actograph.contract.tool_calls import NOT_OFFERED, OPEN, MalformedCall, ToolCall, parse_calls
from evals.prompts import ChatMessages
from evals.tools import Called, Tool, record_of, run_call
from worker.runners import text
from worker.runners.runner import FurtherTurn, Prompt
from worker.text.chat_template import render_chat
from worker.text.tokenizer import Tokenizer
from worker.text.tool_template import offers_tools

Messages = list[dict[str, Any]]


class ToolTurns:
    """Prompts of further turns, for one job."""

    def __init__(self, spec: EvaluationSpec, tokenizer: Tokenizer, tools: Sequence[Tool]) -> None:
        """Raises InvalidRequest if the chat template does not offer tools in the `<tool_call>` form."""
        self._tools = tools
        self._enable_thinking = spec.enable_thinking
        self._max_turns = spec.max_turns
        self._tokenizer = tokenizer
        self._text = text.SpokenText(tokenizer)
        if not offers_tools(tokenizer):
            raise InvalidRequest(NOT_OFFERED, param="tools")

    def first(self, built: str | ChatMessages) -> Prompt:
        """The question, with the tools' descriptions."""
        return self.prompt(_messages(built))

    def further(
        self, built: str | ChatMessages, turns: Sequence[Sequence[int]], called: Called
    ) -> FurtherTurn | ToolUseEnd:
        """Run the calls of the last turn; return the next prompt, or the reason for the end.

        Raises:
            InvalidRequest: the chat template refuses what the model wrote.
        """
        texts = [self._text.of(turn) for turn in turns]
        calls = parse_calls(texts[-1])
        if not calls:
            return "answer"
        if len(turns) >= self._max_turns:
            return "max_turns"
        called.append([run_call(call, self._tools) for call in calls])
        messages: Messages = [*_messages(built)]
        without_results = messages
        for said, results in zip(texts, called, strict=True):
            without_results = [*messages, _assistant(said, parse_calls(said))]
            messages = [*without_results, *({"role": "tool", "content": one.content} for one in results)]
        prompt = self.prompt(messages)
        return FurtherTurn(prompt=prompt, results_from=self.results_from(prompt.token_ids, without_results))

    def record(
        self, turns: Sequence[Sequence[int]], called: Called, ended: ToolUseEnd
    ) -> tuple[ToolUse, list[ToolMessage]]:
        """The record of the tools' use, and the turns and results as text."""
        return record_of([self._text.of(turn) for turn in turns], called, ended)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> Prompt:
        """The prompt of the next turn."""
        return text.encode(self._tokenizer, self.render(messages), is_chat=True)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The conversation with the tools' descriptions."""
        return render_chat(
            self._tokenizer,
            messages,
            enable_thinking=self._enable_thinking,
            add_generation_prompt=add_generation_prompt,
            tools=[tool.definition for tool in self._tools],
        )

    def results_from(self, prompt_ids: Sequence[int], before: Sequence[Mapping[str, Any]]) -> int:
        """The place in a prompt where the results of the last turn begin.

        It is found by end tokens: a template may write a turn differently once another message follows, but
        ends it in the same way.

        Args:
            before: the conversation without those results.
        """
        rendered = self.render(before, add_generation_prompt=False)
        written = text.encode(self._tokenizer, rendered, is_chat=True).token_ids
        end = self._tokenizer.eos_token_id
        turns = written.count(end)
        ends = [place for place, token in enumerate(prompt_ids) if token == end]
        if 0 < turns <= len(ends):
            return ends[turns - 1] + 1
        # a template without end tokens: up to the first difference
        pairs = zip(written, prompt_ids, strict=False)
        return next((place for place, (a, b) in enumerate(pairs) if a != b), len(written))


def _messages(built: str | ChatMessages) -> ChatMessages:
    assert not isinstance(built, str)  # tools need a chat template, so the prompt is a chat
    return built


def _assistant(said: str, calls: Sequence[ToolCall | MalformedCall]) -> dict[str, Any]:
    """A turn as a message; a turn with an unreadable call stays as it was written."""
    readable = [call for call in calls if isinstance(call, ToolCall)]
    if len(readable) < len(calls):
        return {"role": "assistant", "content": said}
    # templates leave out the thought where they must
    thought, mark, rest = said.rpartition("</think>")
    content = thought + mark + rest.partition(OPEN)[0].rstrip()
    return {
        "role": "assistant",
        "content": content if mark else content.strip(),
        "tool_calls": [
            {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in readable
        ],
    }
