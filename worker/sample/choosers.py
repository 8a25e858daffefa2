"""Choosers: which tokens of a sample `positions` selects, for the engine, token by token.

`SampleTokens` serves first turns, `TurnTokens` further turns of a conversation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from actograph.contract.row_selection import NamedPositions, Positions, Selection, held_back
from worker.engine.requests import RowChooser
from worker.sample.conversation import Conversation, TurnPrompt
from worker.sample.segments import Markup, SegmentFollower


def captured(positions: Positions) -> Positions:
    """Positions whose rows the engine keeps: of those that count from a late end, all tokens in question."""
    held = held_back(positions)
    return positions if held is None else held[0]


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
        judge = Selection.of(self.positions, len(prompt_ids)).follow()
        return [token for token in range(len(prompt_ids)) if judge(token, "prompt")]

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        selection = Selection.of(self.positions, len(prompt_ids))
        judge = selection.follow()  # slices count no tokens of the prompt
        if selection.segments is None:
            return lambda row, token_id: judge(row, "")
        follower = SegmentFollower(self.markup, prompt_ids)
        return lambda row, token_id: judge(row, follower.next(token_id))


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
        judge, numbers = self._selection.follow(), self.begun.numbers
        held = [judge(number, name) for number, name in enumerate(self._names)]
        return [place for place in range(self.from_place, len(self.begun.ids)) if held[numbers[place]]]

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        judge, begun = self._selection.follow(), self.begun
        for number, name in enumerate(self._names):
            judge(number, name)
        if self._selection.segments is None:
            return lambda place, token_id: judge(begun.number(place), "")
        follower = SegmentFollower(self.markup, prompt_ids)
        return lambda place, token_id: judge(begun.number(place), follower.next(token_id))

    @cached_property
    def _selection(self) -> Selection:
        return Selection.of(self.positions, self.conversation.first_prompt(self.begun))

    @cached_property
    def _names(self) -> list[str]:
        """Segments of the sample's tokens up to the end of this turn's prompt."""
        return self.conversation.names + self.conversation.prompt_names(self.begun)[self.begun.shared :]
