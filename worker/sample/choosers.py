"""Choosers: which tokens of a sample `positions` selects, for the engine, token by token.

`SampleTokens` serves first turns, `TurnTokens` further turns of a conversation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from actograph.contract.row_selection import NamedPositions, Positions, Selection
from worker.engine.requests import RowChooser
from worker.sample.conversation import Conversation, TurnPrompt
from worker.sample.segments import Markup, SegmentFollower


def named(positions: Positions) -> NamedPositions:
    """The engine's own name for these positions; "all" if a chooser selects them."""
    match positions:
        case "all" | "prompt" | "generated" | "last" | "last_prompt":
            return positions
    return "all"


def chooser(positions: Positions, markup: Markup) -> RowChooser | None:
    """The chooser for these positions; None if the engine has a name for them."""
    match positions:
        case "all" | "prompt" | "generated" | "last" | "last_prompt":
            return None
    return SampleTokens(positions, markup)


@dataclass(frozen=True, slots=True)
class SampleTokens:
    """Selected tokens of a sample's first turn."""

    positions: Positions = field(hash=False)  # may be a list
    markup: Markup

    def of_prompt(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        selection = Selection.of(self.positions, len(prompt_ids))
        return [token for token in range(len(prompt_ids)) if selection.holds(token, "prompt")]

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        selection = Selection.of(self.positions, len(prompt_ids))
        if selection.segments is None:
            return lambda row, token_id: selection.holds(row, "")
        follower = SegmentFollower(self.markup, prompt_ids)
        return lambda row, token_id: selection.holds(row, follower.next(token_id))


@dataclass(frozen=True, eq=False)
class TurnTokens:
    """Selected tokens of one turn of a conversation.

    Numbers and strides count in the sample's sequence of tokens (see `conversation`). `last_prompt` and
    negative numbers count from the end of the first prompt. A token that runs in several turns is one token.

    Attributes:
        from_place: earlier places of the prompt are left out.
    """

    conversation: Conversation
    begun: TurnPrompt
    positions: Positions
    markup: Markup
    from_place: int = 0

    def of_prompt(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        numbers, names = self.begun.numbers, self.conversation.prompt_names(self.begun)
        places = range(self.from_place, len(self.begun.ids))
        return [place for place in places if self._selection.holds(numbers[place], names[place])]

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        selection, begun = self._selection, self.begun
        if selection.segments is None:
            return lambda place, token_id: selection.holds(begun.number(place), "")
        follower = SegmentFollower(self.markup, prompt_ids)
        return lambda place, token_id: selection.holds(begun.number(place), follower.next(token_id))

    @cached_property
    def _selection(self) -> Selection:
        return Selection.of(self.positions, self.conversation.first_prompt(self.begun))
