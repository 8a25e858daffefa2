"""Choosers: they tell the engine which tokens of a sample `positions` means, token by token.

`chooser` serves samples of one turn. `TurnTokens` serves one turn of a conversation. `finished_sample` counts
the same tokens once more, from the finished sample, so that stored rows are checked independently.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from actograph.contract import interventions
from actograph.contract.interventions import TokenRange
from actograph.contract.row_selection import Positions, Stride
from worker.engine.requests import Positions as NamedPositions
from worker.engine.requests import RowChooser
from worker.sample.conversation import Conversation, TurnPrompt
from worker.sample.segments import Markup, SegmentFollower


@dataclass(frozen=True, slots=True)
class EveryKth:
    """Tokens 0, k, 2k, ..."""

    stride: int

    def of_prompt(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        return range(0, len(prompt_ids), self.stride)

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        return lambda row, token_id: row % self.stride == 0


@dataclass(frozen=True, slots=True)
class TheseTokens:
    """Tokens by number; a negative one counts from the end of the prompt."""

    tokens: tuple[int, ...]

    def of_prompt(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        prompt = len(prompt_ids)
        return sorted({t + prompt if t < 0 else t for t in self.tokens if -prompt <= t < prompt})

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        wanted = frozenset(self.tokens)
        return lambda row, token_id: row in wanted


@dataclass(frozen=True, slots=True)
class InSegments:
    """Tokens of the named segments."""

    names: frozenset[str]
    markup: Markup

    def of_prompt(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        return range(len(prompt_ids) if "prompt" in self.names else 0)

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        follower = SegmentFollower(self.markup, prompt_ids)
        return lambda row, token_id: follower.next(token_id) in self.names


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
        case Stride():
            return EveryKth(positions.stride)
        case str():
            return InSegments(frozenset([positions]), markup)
        case list():
            numbers = tuple(p for p in positions if isinstance(p, int))
            if numbers:
                return TheseTokens(numbers)
            return InSegments(frozenset(str(p) for p in positions), markup)


@dataclass(frozen=True, eq=False)
class TurnTokens:
    """Tokens of one turn of a conversation.

    Numbers and strides count in the sample's sequence of tokens (see `conversation`). `last_prompt` and
    negative numbers refer to the end of the first prompt. A token run in several turns is one token.

    Attributes:
        from_place: places of the prompt before this one are left out.
    """

    conversation: Conversation
    begun: TurnPrompt
    positions: Positions | interventions.Positions
    markup: Markup
    from_place: int = 0

    def of_prompt(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        begun, conversation = self.begun, self.conversation
        holds = self._by_number
        if holds is None and self.positions == "generated":
            holds = conversation.chosen.__contains__
        if holds is not None:
            return [p for p in range(self.from_place, len(begun.ids)) if holds(begun.numbers[p])]
        names = conversation.prompt_names(begun)
        return [p for p in range(self.from_place, len(begun.ids)) if names[p] in self._names]

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        holds, begun = self._by_number, self.begun
        if holds is not None:
            return lambda place, token_id: holds(begun.number(place))
        if self.positions == "generated":
            return lambda place, token_id: True
        follower = SegmentFollower(self.markup, prompt_ids)
        return lambda place, token_id: follower.next(token_id) in self._names

    @cached_property
    def _by_number(self) -> Callable[[int], bool] | None:
        """Test of a token by its number; None if the number does not decide."""
        positions, prompt = self.positions, self.conversation.first_prompt(self.begun)
        match positions:
            case "all":
                return lambda number: True
            case "last_prompt":
                return lambda number: number == prompt - 1
            case Stride():
                return lambda number: number % positions.stride == 0
            case TokenRange():
                return positions.holds
            case [int(), *_]:
                listed = frozenset(prompt + int(p) if int(p) < 0 else int(p) for p in positions)
                return listed.__contains__
        return None

    @cached_property
    def _names(self) -> frozenset[str]:
        named = self.positions if isinstance(self.positions, list) else [self.positions]
        return frozenset(str(name) for name in named)
