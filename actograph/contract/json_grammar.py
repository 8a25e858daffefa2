"""Grammars of JSON texts, in llguidance's form of Lark's: https://github.com/guidance-ai/llguidance."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

#: one space at most between the parts of a text: models are trained on both forms
_SPACES = {"x-guidance": {"whitespace_flexible": True, "whitespace_pattern": " ?"}}


def arguments_of(
    tools: Sequence[Mapping[str, Any]], only: Collection[str] | None = None
) -> dict[str, Mapping[str, Any]]:
    """Tool -> schema of its arguments, of tools in OpenAI's form.

    Args:
        only: names of the tools whose schemas count; the others take any object. None: all.
    """
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or ANY_OBJECT for tool in tools}
    return {name: schema if only is None or name in only else ANY_OBJECT for name, schema in schemas.items()}


def of_json(schema: Mapping[str, Any]) -> str:
    """The grammar of a JSON text that follows a JSON schema."""
    return f"start: {_value(schema)}"


def of_choice(texts: Sequence[str]) -> str:
    """The grammar of one of the texts."""
    return f"start: {' | '.join(map(json.dumps, texts))}"


def of_regex(pattern: str) -> str:
    """The grammar of a text that matches a regular expression as a whole, in Rust's syntax."""
    pattern = re.sub(r"(?<!\\)/", r"\/", pattern).replace("\n", r"\n")
    return f"start: /{pattern}/"


def of_call(schemas: Mapping[str, Mapping[str, Any]], between: str) -> str:
    """The grammar of the rest of a tool call in JSON, from the tool's name on.

    Args:
        schemas: tool -> schema of its arguments.
        between: the text between name and arguments.
    """
    return f"start: {_calls(schemas, between, '}')}"


def of_arguments(schema: Mapping[str, Any]) -> str:
    """The grammar of the rest of a tool call in JSON, from the arguments on."""
    return f"start: {json.dumps(' ')}? {_value(schema)} {json.dumps('}')}"


@dataclass(frozen=True, slots=True)
class Calls:
    """Tool calls in JSON that a model may begin itself.

    Attributes:
        schemas: tool -> schema of its arguments.
        form: the texts before the tool's name, between name and arguments, and after the arguments.
        marks: tokens around each call; the first one is nowhere else.
    """

    schemas: Mapping[str, Mapping[str, Any]]
    form: tuple[str, str, str]
    marks: tuple[int, int]

    @property
    def rule(self) -> str:
        before, between, after = self.form
        first, last = self.marks
        calls = _calls(self.schemas, between, after)
        return f"<[{first}]> {json.dumps(before)} ({calls}) <[{last}]>"


def of_text_with_calls(calls: Calls, others: Sequence[int]) -> str:
    """The grammar of any text with any number of tool calls.

    Args:
        others: all other tokens that are no text, such as those around a thought; the second mark too.
    """
    return "\n".join(
        (
            "start: call* said",
            f"call: said {calls.rule}",
            f"said: (TEXT | <[{','.join(map(str, others))}]>)*",
            r"TEXT: /(.|\n)+/",
        )
    )


def of_answer_or_calls(answer: str, calls: Calls) -> str:
    """The grammar of an answer that follows the grammar `answer`, or of one tool call or more."""
    form = answer.removeprefix("start:")
    return f"start: answer | call+\nanswer: {form}\ncall: {calls.rule} {json.dumps(chr(10))}?"


def _calls(schemas: Mapping[str, Mapping[str, Any]], between: str, after: str) -> str:
    """Any of the calls, from the tool's name on."""
    return " | ".join(
        f"{json.dumps(name + between)} {_value(schema)} {json.dumps(after)}"
        for name, schema in schemas.items()
    )


def _value(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, **_SPACES})}"
