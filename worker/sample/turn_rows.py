"""Which tokens of one turn a choice of positions means, in a sample of several turns.

Positions speak of the sample's sequence of tokens (see `conversation`): numbers and strides count in
it, `last_prompt` and negative numbers are told by the end of the first prompt, and a token that several
turns run is the same token in each of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from actograph.contract import interventions
from actograph.contract.interventions import TokenRange
from actograph.contract.row_selection import Positions, Stride
from worker.sample.conversation import Conversation, TurnPrompt
from worker.sample.segments import Markup, SegmentFollower


@dataclass(frozen=True, eq=False)
class TurnTokens:
    """Chooses the tokens of one turn for the engine, place by place: a `RowChooser`.

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
        """Whether a token is meant, by its number; None where the number does not tell."""
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
