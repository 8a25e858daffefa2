"""Tool calls in a model's text: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

This is the format of Qwen2.5, Qwen3 and the Hermes models (NousResearch, Hermes function calling).
Calls inside a thought are thoughts, not calls.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
NOT_OFFERED = (
    f"the model's chat template does not offer tools in the {OPEN} form (Qwen2.5, Qwen3 and Hermes models "
    "do); run the task without tools or with such a model"
)
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
#: start of an annotated calculation, up to its result (Cobbe et al. 2021, arXiv 2110.14168)
CALCULATION = re.compile(r"<<([^<>=\n]{1,400})=\Z")
_FORM = 'write {"name": "<tool>", "arguments": {...}} between <tool_call> and </tool_call>'


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A call that cannot be read; `reason` is shown to the model."""

    reason: str


def parse_calls(text: str) -> list[ToolCall | MalformedCall]:
    """The calls of one turn, in order.

    Args:
        text: the turn, with its markers.
    """
    spoken = _THOUGHT.sub("", text)
    if "</think>" in spoken:  # the template opened the thought
        spoken = spoken.rpartition("</think>")[2]
    calls: list[ToolCall | MalformedCall] = []
    for piece in spoken.split(OPEN)[1:]:
        body, closed, _ = piece.partition(CLOSE)
        calls.append(_parse(body.strip()) if closed else _unclosed(body))
    return calls


def annotation_call(text: str) -> ToolCall | None:
    """The call of the calculator at the end of a text, in GSM8K's form: `<<48/2=`."""
    found = CALCULATION.search(text)
    return None if found is None else ToolCall("calculator", {"expression": found[1].strip()})


def recorded_calls(text: str) -> list[ToolCall | MalformedCall]:
    """The calls of a recorded turn, in either form."""
    annotation = annotation_call(text)
    return parse_calls(text) or ([] if annotation is None else [annotation])


def text_before_calls(text: str) -> str:
    """The text of a turn before its first call, without white space at the end."""
    return text[: first_call(text)].rstrip()


def first_call(text: str) -> int:
    """Start of the first call of a turn, outside of thoughts; the text's length if there is none."""
    start = text.rfind("</think>") + 1  # 0 where no thought ends
    if not start and "<think>" in text:
        return len(text)
    found = text.find(OPEN, start)
    return len(text) if found < 0 else found


def _unclosed(body: str) -> ToolCall | MalformedCall:
    """Read a call without closing marker. It counts if its JSON is complete: models often end there."""
    found = _parse(body.strip())
    if isinstance(found, ToolCall):
        return found
    return MalformedCall(f"the call is not closed; {_FORM}")


def _parse(body: str) -> ToolCall | MalformedCall:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return MalformedCall(f"the call is not valid JSON; {_FORM}")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return MalformedCall(f"the call names no tool; {_FORM}")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # OpenAI's form: the arguments as JSON text
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return MalformedCall(f"the arguments are not valid JSON; {_FORM}")
    if not isinstance(arguments, dict):
        return MalformedCall(f"the arguments are no object; {_FORM}")
    return ToolCall(name=value["name"], arguments=arguments)
