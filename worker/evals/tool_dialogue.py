"""A model's conversation with its tools: their descriptions, and the results after each turn.

A turn that calls tools is followed by their results, a turn that calls none is the answer. The whole
conversation is rendered anew by the model's chat template before each turn, as chat services do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from actograph.contract.chat.tool_calls import OPEN, MalformedCall, ToolCall, parse_calls
from actograph.contract.errors import InvalidRequest
from actograph.contract.resources.tool_use import ToolMessage, ToolUse, ToolUseEnd
from worker.evals.tools import Tool, run_call
from worker.text.chat_template import encode_prompt, render_chat

Messages = list[dict[str, Any]]


class ToolFormat:
    """The form in which a model's chat template offers tools and returns their results.

    Raises:
        InvalidRequest: (constructor) the template offers no tools, or in another form than
            `<tool_call>`.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Tool], *, enable_thinking: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._enable_thinking = enable_thinking
        self.tools = tuple(tools)
        asked = [{"role": "user", "content": "?"}]
        offered = self.render(asked)
        if OPEN not in offered or offered == render_chat(tokenizer, asked, enable_thinking=enable_thinking):
            raise InvalidRequest(
                f"the model's chat template does not offer tools in the {OPEN} form (Qwen2.5, Qwen3 and "
                "Hermes models do); run the task without tools or with such a model",
                param="mode",
            )

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The conversation with the tools' descriptions."""
        return render_chat(
            self._tokenizer,
            messages,
            enable_thinking=self._enable_thinking,
            add_generation_prompt=add_generation_prompt,
            tools=[tool.definition for tool in self.tools],
        )

    def ids(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of `render`."""
        text = self.render(messages, add_generation_prompt=add_generation_prompt)
        return encode_prompt(self._tokenizer, text, is_chat=True)

    def results_from(self, prompt_ids: Sequence[int], before: Sequence[Mapping[str, Any]]) -> int:
        """The place in a turn's prompt where the results of the turn before begin.

        Found by the ends of turns: templates may write a turn otherwise once something follows it,
        but they end it just so.

        Args:
            before: the conversation without those results.
        """
        written = self.ids(before, add_generation_prompt=False)
        end = self._tokenizer.eos_token_id
        turns = written.count(end)
        ends = [place for place, token in enumerate(prompt_ids) if token == end]
        if 0 < turns <= len(ends):
            return ends[turns - 1] + 1
        # a template that does not end its turns with that token: up to where the two differ
        pairs = zip(written, prompt_ids, strict=False)
        return next((place for place, (a, b) in enumerate(pairs) if a != b), len(written))

    def after_turn(self, text: str) -> tuple[Messages, Messages]:
        """Messages added by a turn: the turn itself and the results of its calls.

        Both are empty if the turn calls no tool and so is the answer.

        Args:
            text: what the model wrote, marks included, the end of its turn left out.
        """
        calls = parse_calls(text)
        if not calls:
            return [], []
        results: Messages = [
            {"role": "tool", "content": run_call(call, self.tools).content} for call in calls
        ]
        return [_assistant(text, calls)], results


def _assistant(text: str, calls: Sequence[ToolCall | MalformedCall]) -> dict[str, Any]:
    """A turn as a message; a turn with an unreadable call stays as it was written."""
    readable = [call for call in calls if isinstance(call, ToolCall)]
    if len(readable) < len(calls):
        return {"role": "assistant", "content": text}
    return {
        "role": "assistant",
        "content": text.partition(OPEN)[0].strip() if "</think>" not in text else _spoken(text),
        "tool_calls": [
            {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in readable
        ],
    }


def _spoken(text: str) -> str:
    """The thought, which templates know where to leave out, and what was said before the first call."""
    thought, mark, rest = text.rpartition("</think>")
    return thought + mark + rest.partition(OPEN)[0].rstrip()


def tool_use(
    form: ToolFormat, turns: Sequence[str], *, ended: ToolUseEnd
) -> tuple[ToolUse, list[ToolMessage]]:
    """The record of a finished conversation, and its messages, from what the model wrote in each turn.

    Args:
        ended: why there was no further turn.
    """
    messages: list[ToolMessage] = []
    calls = errors = malformed = 0
    for number, text in enumerate(turns):
        messages.append(ToolMessage(role="assistant", content=text))
        if number == len(turns) - 1:
            break  # what the last turn calls was not run
        for call in parse_calls(text):
            result = run_call(call, form.tools)
            calls += 1
            errors += result.error
            malformed += isinstance(call, MalformedCall)
            messages.append(ToolMessage(role="tool", content=result.content, error=result.error))
    use = ToolUse(turns=len(turns), calls=calls, errors=errors, malformed=malformed, ended=ended)
    return use, messages
