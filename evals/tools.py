"""Tools that a model may call in an evaluation: their descriptions and results."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from actograph.contract.errors import FunctionFailed, InvalidRequest
from actograph.contract.resources import ToolMessage, ToolUse, ToolUseEnd
from actograph.contract.specs import BUILT_IN_TOOLS
from actograph.contract.tool_calls import MalformedCall, ToolCall
from evals.calculator import CalculatorError, calculate
from evals.user_functions.functions import UserFunctions

#: longest result that goes back to the model, in characters
MAX_RESULT_CHARS = 4_000


class ToolError(Exception):
    """A call without a result; the message is for the model."""


@dataclass(frozen=True)
class Tool:
    """A function that a model may call, described as in OpenAI's `tools`."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # JSON schema of the arguments
    run: Callable[[Mapping[str, Any]], str]  # raises ToolError

    @property
    def definition(self) -> dict[str, Any]:
        """The tool's description for chat templates and OpenAI's API."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a call; if `error` is set, `content` explains it to the model."""

    content: str
    error: bool = False
    malformed: bool = False  # the call could not be read


#: results of each turn's calls
Called = list[list[ToolResult]]


def _calculator(arguments: Mapping[str, Any]) -> str:
    expression = arguments.get("expression")
    if isinstance(expression, int | float) and not isinstance(expression, bool):
        expression = repr(expression)
    if not isinstance(expression, str):
        raise ToolError('calculator needs {"expression": "..."}, a text such as "48/2"')
    try:
        return calculate(expression)
    except CalculatorError as error:
        raise ToolError(str(error)) from error


CALCULATOR = Tool(
    name="calculator",
    description="Evaluate an arithmetic expression.",
    parameters={
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
    run=_calculator,
)


def tools_of(names: Sequence[str], own: UserFunctions) -> list[Tool]:
    """Tools by their names: the calculator, and functions of the operator.

    Raises:
        InvalidRequest: there is no such tool.
        FunctionFailed: a function has no description.
    """
    return [CALCULATOR if name in BUILT_IN_TOOLS else _user_tool(name, own) for name in names]


def _user_tool(name: str, own: UserFunctions) -> Tool:
    if name not in own.names:
        known = ", ".join([*BUILT_IN_TOOLS, *own.names])
        raise InvalidRequest(f"there is no tool {name!r}; the tools are {known}", param="tools")

    def run(arguments: Mapping[str, Any]) -> str:
        try:
            found = own.call(name, arguments)
        except FunctionFailed as error:
            raise ToolError(error.message) from error
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)

    described = own.definition(name)
    return Tool(name, described["description"], described["parameters"], run)


def run_call(call: ToolCall | MalformedCall, tools: Sequence[Tool]) -> ToolResult:
    """Run one call. Never raises: an error is the result of its call."""
    if isinstance(call, MalformedCall):
        return replace(_failed(call.reason), malformed=True)
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        known = ", ".join(tool.name for tool in tools)
        return _failed(f"there is no tool {json.dumps(call.name[:64])}; the tools are {known}")
    try:
        return ToolResult(tool.run(call.arguments)[:MAX_RESULT_CHARS])
    except ToolError as error:
        return _failed(str(error))
    except Exception as error:  # noqa: BLE001 (a tool that breaks must not end the sample)
        return _failed(f"{tool.name} failed: {type(error).__name__}: {error}")


def _failed(reason: str) -> ToolResult:
    return ToolResult(f"Error: {reason}"[:MAX_RESULT_CHARS], error=True)


def record_of(turns: Sequence[str], called: Called, ended: ToolUseEnd) -> tuple[ToolUse, list[ToolMessage]]:
    """The record of a finished conversation, and its messages.

    Args:
        turns: text of each turn.
        called: results of each turn's calls; those of the last turn were not given to the model.
    """
    given = [*called[: len(turns) - 1], []]
    messages: list[ToolMessage] = []
    for said, own in zip(turns, given, strict=True):
        messages.append(ToolMessage(role="assistant", content=said))
        messages += [ToolMessage(role="tool", content=r.content, error=r.error) for r in own]
    calls = [result for own in given for result in own]
    use = ToolUse(
        turns=len(turns),
        calls=len(calls),
        errors=sum(result.error for result in calls),
        malformed=sum(result.malformed for result in calls),
        ended=ended,
    )
    return use, messages
