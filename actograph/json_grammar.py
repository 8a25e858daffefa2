"""Grammars of JSON texts, in llguidance's form of Lark's: https://github.com/guidance-ai/llguidance."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

#: one space at most between the parts of a text: models are trained on both forms
_SPACES = {"x-guidance": {"whitespace_flexible": True, "whitespace_pattern": " ?"}}


def arguments_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Tool -> schema of its arguments, of tools in OpenAI's form."""
    functions = [tool["function"] for tool in tools]
    return {function["name"]: function.get("parameters") or ANY_OBJECT for function in functions}


def of_json(schema: Mapping[str, Any]) -> str:
    """The grammar of a JSON text that follows a JSON schema."""
    return f"start: {_value(schema)}"


def of_call(schemas: Mapping[str, Mapping[str, Any]], between: str) -> str:
    """The grammar of the rest of a tool call in JSON, from the tool's name on.

    Args:
        schemas: tool -> schema of its arguments.
        between: the text between name and arguments.
    """
    calls = [
        f"{json.dumps(name + between)} {_value(schema)} {json.dumps('}')}" for name, schema in schemas.items()
    ]
    return f"start: {' | '.join(calls)}"


def of_arguments(schema: Mapping[str, Any]) -> str:
    """The grammar of the rest of a tool call in JSON, from the arguments on."""
    return f"start: {json.dumps(' ')}? {_value(schema)} {json.dumps('}')}"


def _value(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, **_SPACES})}"
