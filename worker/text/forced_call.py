"""The beginning of a turn that must call a tool, in the model's own form.

The chat template renders an assistant's message with a call. The text before the tool's name, or up to the
arguments, is the beginning. The model continues it and so writes the rest of a call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from actograph.contract.errors import InvalidRequest
from actograph.contract.tool_calls import CLOSE, OPEN, ToolCall, parse_calls
from worker.text.chat_template import render_chat
from worker.text.tokenizer import Tokenizer

#: placeholders for a tool and an argument that occur in no conversation
_NAME, _KEY = "x9q_the_tool_q9x", "x9q_the_argument_q9x"
_CALL = ToolCall(_NAME, {_KEY: 1})


@dataclass(frozen=True)
class ForcedCall:
    """A rendered conversation whose last turn has begun to call a tool.

    Attributes:
        text: all of it.
        begun: the last part of `text`, from `<tool_call>` on.
        between: the text between the tool's name and the arguments.
        after: the text between the arguments and `</tool_call>`.
    """

    text: str
    begun: str
    between: str
    after: str


def begin_call(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    enable_thinking: bool,
    name: str | None,
    variables: Mapping[str, Any] = MappingProxyType({}),
) -> ForcedCall:
    """The conversation with a begun call of the tool `name`; None: the model chooses the tool.

    A thought stays empty, as the template writes it.

    Raises:
        InvalidRequest: there is no chat template, or it writes calls otherwise than `<tool_call>`.
    """

    def render(with_call: Sequence[Mapping[str, Any]] = ()) -> str:
        return render_chat(
            tokenizer,
            [*messages, *with_call],
            enable_thinking=enable_thinking,
            add_generation_prompt=not with_call,
            tools=tools,
            variables=variables,
        )

    function = {"name": _NAME, "arguments": dict(_CALL.arguments)}
    call = {"id": "call_000000000", "type": "function", "function": function}
    written = render([{"role": "assistant", "content": "", "tool_calls": [call]}])
    # the turn begins where the conversation without it ends, or sooner
    waiting = render()
    pairs = enumerate(zip(waiting, written, strict=False))
    turn = next((place for place, (a, b) in pairs if a != b), len(waiting))
    start, at = written.find(OPEN, turn), written.find(_NAME, turn)
    if not 0 <= start < at or parse_calls(written[start:]) != [_CALL]:
        raise InvalidRequest(
            f"the model's chat template does not write calls in the {OPEN} form (Qwen2.5, Qwen3 and Hermes "
            "models do), so calls can be neither forced, nor strict, nor beside a form of the answer; leave "
            "tool_choice, strict, and response_format out",
            param="tool_choice",
        )
    key = written.index(_KEY, at)
    between = written[at + len(_NAME) : written.rindex("{", at, key)]
    after = written[written.index("}", key) + 1 : written.index(CLOSE, key)]
    # tokens often hold the white space before the arguments' brace
    whole = written[:at] + ("" if name is None else name + between.rstrip())
    return ForcedCall(text=whole, begun=whole[start:], between=between, after=after)
