"""Tool use of a sample, and totals of a condition."""

from collections.abc import Mapping
from typing import Literal, get_args

from pydantic import Field

from actograph.contract.base import Resource

#: `answer`: the last turn calls no tool; `max_turns`, `context_length`: it calls one, but no further turn is
#: possible; `length`: a turn reached max_tokens
ToolUseEnd = Literal["answer", "max_turns", "context_length", "length"]


class ToolMessage(Resource):
    """A turn of the model, or the result of one call."""

    role: Literal["assistant", "tool"]
    content: str
    error: bool = Field(
        False,
        description="True if the call failed; the content is the error. The model sees it, except with "
        "annotations, which the model then completes itself.",
    )


class ToolUse(Resource):
    """Numbers of turns and tool calls of a sample."""

    turns: int = Field(description="Turns of the model.")
    calls: int = Field(description="Calls with a result, including failed ones.")
    errors: int = Field(description="Failed calls.")
    malformed: int = Field(description="Failed calls that could not be read.")
    ended: ToolUseEnd


class ToolTotals(Resource):
    """Totals of the tool use of a condition's samples."""

    samples: int = Field(description="Samples with tools.")
    calling: int = Field(description="Samples with at least one call.")
    turns: int
    calls: int
    errors: int
    malformed: int
    ended: dict[ToolUseEnd, int] = Field(description="End of a sample -> number of samples.")


def totals(uses: Mapping[ToolUse, int]) -> ToolTotals | None:
    """The totals of some samples. Returns None if no sample has tools.

    Args:
        uses: number of samples of each tool use.
    """
    if not uses:
        return None
    ended: dict[ToolUseEnd, int] = {}
    for end in get_args(ToolUseEnd):
        if count := sum(samples for use, samples in uses.items() if use.ended == end):
            ended[end] = count
    return ToolTotals(
        samples=sum(uses.values()),
        calling=sum(samples for use, samples in uses.items() if use.calls),
        turns=sum(samples * use.turns for use, samples in uses.items()),
        calls=sum(samples * use.calls for use, samples in uses.items()),
        errors=sum(samples * use.errors for use, samples in uses.items()),
        malformed=sum(samples * use.malformed for use, samples in uses.items()),
        ended=ended,
    )
