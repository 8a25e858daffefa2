"""How a sample used its tools, and how the samples of a condition did."""

from collections.abc import Sequence
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

#: `answer`: the last turn calls no tool; `max_turns`, `context_length`: it does, and there was no turn or
#: no room for another; `length`: max_tokens were used up in the middle of a turn
ToolUseEnd = Literal["answer", "max_turns", "context_length", "length"]


class ToolMessage(BaseModel):
    """A turn of the model, or the result of one call."""

    model_config = ConfigDict(frozen=True)

    role: Literal["assistant", "tool"]
    content: str
    error: bool = Field(
        False,
        description="The call failed, and the content says why; the model was told, except where it writes "
        "annotations, which it then completes itself.",
    )


class ToolUse(BaseModel):
    """How often a sample called tools, and how that ended."""

    model_config = ConfigDict(frozen=True)

    turns: int = Field(description="Turns of the model.")
    calls: int = Field(description="Calls that were answered, failed ones included.")
    errors: int = Field(description="Calls that were answered with an error.")
    malformed: int = Field(description="Of those, calls that could not be read.")
    ended: ToolUseEnd


class ToolTotals(BaseModel):
    """The tool use of a condition's samples together."""

    model_config = ConfigDict(frozen=True)

    samples: int = Field(description="Samples that had tools.")
    calling: int = Field(description="Samples that called one at least once.")
    turns: int
    calls: int
    errors: int
    malformed: int
    ended: dict[ToolUseEnd, int] = Field(description="How many samples ended in which way.")


def totals(uses: Sequence[ToolUse]) -> ToolTotals | None:
    """Summed up; None where no sample had tools."""
    if not uses:
        return None
    return ToolTotals(
        samples=len(uses),
        calling=sum(use.calls > 0 for use in uses),
        turns=sum(use.turns for use in uses),
        calls=sum(use.calls for use in uses),
        errors=sum(use.errors for use in uses),
        malformed=sum(use.malformed for use in uses),
        ended={end: count for end in get_args(ToolUseEnd) if (count := sum(u.ended == end for u in uses))},
    )


def joined(one: ToolTotals | None, other: ToolTotals | None) -> ToolTotals | None:
    """The totals of two groups of samples together."""
    if one is None or other is None:
        return one or other
    added = {
        name: getattr(one, name) + getattr(other, name)
        for name in ("samples", "calling", "turns", "calls", "errors", "malformed")
    }
    counts = {end: one.ended.get(end, 0) + other.ended.get(end, 0) for end in get_args(ToolUseEnd)}
    return ToolTotals(**added, ended={end: count for end, count in counts.items() if count})
