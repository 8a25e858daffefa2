"""Constraints of chat answers: `response_format`, `strict` tools and required calls."""

from collections.abc import Sequence
from typing import Any

from actograph.contract.chat.chat_job import ChatInput
from worker.text.constraints import GrammarCompiler, GrammarConstraint
from worker.text.forced_call import CallForm
from worker.text.grammars import AllowedTool, begun_call_grammar, free_call_grammar, json_grammar


class AnswerConstraints:
    """Makes the constraint of one answer from its request. All methods raise InvalidRequest."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler

    def of_call(self, given: ChatInput, form: CallForm) -> GrammarConstraint:
        """The constraint of an answer that must call a tool and whose call is begun."""
        tools = _allowed(given)
        named = given.call_name is not None
        if named:
            tools = [tool for tool in tools if tool.name == given.call_name]
        grammar = begun_call_grammar(tools, form, self._compiler.marker_id, named=named, once=given.one_call)
        return self._compiler.compile(grammar, param="tools")

    def of_answer(self, given: ChatInput, form: CallForm | None) -> GrammarConstraint | None:
        """The constraint of any other answer; None allows any text.

        Args:
            form: fixed parts of a call; None if tools need no constraint.
        """
        answer = given.answer_format
        if form is not None:
            also = None if answer is None else (answer.json_schema, answer.strict)
            grammar = free_call_grammar(_allowed(given), form, self._compiler.marker_id, also)
            return self._compiler.compile(grammar, param="tools")
        if answer is None:
            return None
        grammar = json_grammar(answer.json_schema, strict=answer.strict)
        return self._compiler.compile(grammar, param="response_format")


def _allowed(given: ChatInput) -> Sequence[AllowedTool]:
    functions: list[dict[str, Any]] = [tool["function"] for tool in given.tools or ()]
    return [
        AllowedTool(
            name=function["name"],
            schema=function.get("parameters") or {"type": "object"},
            strict=function["name"] in given.strict_tools,
        )
        for function in functions
    ]
