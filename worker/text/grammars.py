"""Grammars of constrained answers, in the form of llguidance.

The syntax is described at https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actograph.contract.chat.tool_calls import CLOSE, OPEN
from worker.text.forced_call import CallForm

#: a schema without bounds on white space lets a model write it for ever
_OPTIONS = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_MARKERS = re.compile(r"(</?(?:tool_call|think)>)")
_THOUGHT = "<think>", "</think>"


@dataclass(frozen=True, kw_only=True)
class AllowedTool:
    """A tool that an answer may call.

    Attributes:
        schema: JSON schema of the arguments.
        strict: False ignores keywords of the schema that llguidance does not know.
    """

    name: str
    schema: Mapping[str, Any]
    strict: bool


#: special token id of a marker; None if the tokenizer writes it as ordinary text
MarkerId = Callable[[str], int | None]


def json_grammar(schema: Mapping[str, Any], *, strict: bool) -> str:
    """Grammar of one JSON value, written on one line as Python's json module writes it.

    Args:
        schema: JSON schema of the value.
        strict: False ignores keywords that llguidance does not know.
    """
    return f"start: {_json(schema, strict)}\n"


def begun_call_grammar(
    tools: Sequence[AllowedTool], form: CallForm, marker_id: MarkerId, *, named: bool, once: bool
) -> str:
    """Grammar of the rest of a call whose beginning is in the prompt.

    Args:
        named: True if the prompt has the tool's name too; `tools` is this tool.
        once: True if the answer ends with the call.
    """
    write = _Writer(form, marker_id)
    first = write.arguments(tools[0]) if named else f"({' | '.join(map(write.from_name, tools))})"
    more = "" if once else f" ({write.literal(chr(10))} {write.call(tools)})*"
    return f"start: {first}{more}\n"


def free_call_grammar(
    tools: Sequence[AllowedTool],
    form: CallForm,
    marker_id: MarkerId,
    answer: tuple[Mapping[str, Any], bool] | None,
) -> str:
    """Grammar of an answer that may call tools.

    Args:
        answer: schema of an answer without calls, and whether it is strict; None allows any text.
    """
    write = _Writer(form, marker_id)
    if answer is not None:
        call = write.call(tools)
        return f"start: {_json(*answer)} | {call} ({write.literal(chr(10))} {call})*\n"
    marks = [f"<[{found}]>" for found in map(marker_id, _THOUGHT) if found is not None]
    free = f"free: TEXT (({' | '.join(marks)}) TEXT)*" if marks else "free: TEXT"
    rules = ["start: called* free", free, r"TEXT: /(.|\n)*/"]
    if marker_id(OPEN) is None:
        # the marker is text: the first match ends the text before it
        rules += [f"opened[lazy]: /(.|\\n)*/ {json.dumps(OPEN)}", f"called: opened {write.after_open(tools)}"]
    else:
        rules.append(f"called: free {write.literal(OPEN)} {write.after_open(tools)}")
    return "\n".join(rules) + "\n"


def _json(schema: Mapping[str, Any], strict: bool) -> str:
    options: dict[str, Any] = _OPTIONS if strict else _OPTIONS | {"lenient": True}
    return "%json " + json.dumps({**schema, "x-guidance": options})


class _Writer:
    """Writes parts of calls as rules."""

    def __init__(self, form: CallForm, marker_id: MarkerId) -> None:
        self._form = form
        self._marker_id = marker_id

    def literal(self, text: str) -> str:
        """A fixed text; special tokens are named by their ids."""
        parts = []
        for part in filter(None, _MARKERS.split(text)):
            special = self._marker_id(part) if _MARKERS.fullmatch(part) else None
            parts.append(json.dumps(part) if special is None else f"<[{special}]>")
        return " ".join(parts)

    def arguments(self, tool: AllowedTool) -> str:
        """The arguments of a call, the white space before them, and the end of the call."""
        form = self._form
        return f"{self.literal(form.gap)} {_json(tool.schema, tool.strict)} {self.literal(form.end)}"

    def from_name(self, tool: AllowedTool) -> str:
        return f"{json.dumps(tool.name)} {self.literal(self._form.between)} {self.arguments(tool)}"

    def after_open(self, tools: Sequence[AllowedTool]) -> str:
        start = self.literal(self._form.start.removeprefix(OPEN))
        return f"{start} ({' | '.join(map(self.from_name, tools))})"

    def call(self, tools: Sequence[AllowedTool]) -> str:
        """A whole call of any of the tools."""
        return f"{self.literal(OPEN)} {self.after_open(tools)}"


assert _MARKERS.fullmatch(OPEN) and _MARKERS.fullmatch(CLOSE)
