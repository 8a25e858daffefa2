"""How a sample used its tools."""

from typing import Literal

from pydantic import Field

from actograph.contract.resources import Resource

#: `answer`: the last turn calls no tool; `max_turns`, `context_length`: it does, and there was no turn or
#: no room for another; `length`: max_tokens were used up in the middle of a turn
ToolUseEnd = Literal["answer", "max_turns", "context_length", "length"]


class ToolMessage(Resource):
    """A turn of the model, or the result of one call."""

    role: Literal["assistant", "tool"]
    content: str
    error: bool = Field(False, description="The call failed, and the content told the model why.")


class ToolUse(Resource):
    """The conversation of a sample with its tools."""

    turns: int = Field(description="Turns of the model.")
    calls: int = Field(description="Calls that were answered, failed ones included.")
    errors: int = Field(description="Calls that were answered with an error.")
    malformed: int = Field(description="Of those, calls that could not be read.")
    ended: ToolUseEnd
    messages: list[ToolMessage]
