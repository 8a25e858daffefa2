"""A sample of several turns as one sequence of tokens.

Every turn of the model is a generation of its own, whose prompt is the conversation so far, rendered
anew by the chat template. Templates rewrite what is past (Qwen3's drops empty thoughts), so a turn's
prompt need not begin with everything that came before. What it shares with the turn before it, from the
start on, is stored once: the sequence of the sample is the first turn's tokens, then of each further
turn those after the shared beginning. A turn's manifest entry says how long that is (`context`).

Token numbers below are of that sequence; places are of one turn's own tokens, prompt first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from actograph.contract.errors import CaptureFailed
from actograph.contract.row_selection import Positions, Selection
from storage.sessions.manifest import Segment, Turn
from worker.engine.requests import Generation
from worker.sample.segments import Markup, SegmentFollower, runs

TOOL_RESULT = "tool_result"


@dataclass(frozen=True, slots=True)
class TurnPrompt:
    """Prompt of the next turn: its tokens, and the new ones among them.

    Attributes:
        ids: the whole prompt of the turn.
        numbers: the token number of each of them.
        shared: places before this one were run by an earlier turn.
        first_row: the first place whose row no earlier turn has.
        results_from: places from here on are results of tools; None where there are none.
    """

    ids: tuple[int, ...]
    numbers: tuple[int, ...]
    shared: int
    first_row: int
    results_from: int | None

    def number(self, place: int) -> int:
        """The token number of a place of the prompt or of what is generated after it."""
        if place < len(self.ids):
            return self.numbers[place]
        return self.numbers[-1] + 1 + place - len(self.ids)


class Conversation:
    """The turns of one sample so far."""

    def __init__(self, markup: Markup) -> None:
        self._markup = markup
        self.token_ids: list[int] = []
        self.generations: list[Generation] = []
        self.turns: list[Turn] = []
        #: segment of every token
        self._names: list[str] = []
        #: of the latest turn: its own tokens and their numbers
        self._ids: list[int] = []
        self._numbers: list[int] = []
        self._unrun: set[int] = set()
        #: tokens whose rows exist of a hook that is computed from a prompt's last token on
        self._tail: list[int] = []

    def begin(self, prompt_ids: Sequence[int], results_from: int | None = None) -> TurnPrompt:
        """Beginning that the next turn shares with the latest; changes nothing."""
        most = min(len(self._ids), len(prompt_ids))
        shared = next((i for i in range(most) if self._ids[i] != prompt_ids[i]), most)
        if shared == len(prompt_ids) and self._numbers[shared - 1] not in self._unrun:
            shared -= 1  # the last token of a prompt is always run, since the first choice is made from it
        new = range(len(self.token_ids), len(self.token_ids) + len(prompt_ids) - shared)
        return TurnPrompt(
            ids=tuple(prompt_ids),
            numbers=(*self._numbers[:shared], *new),
            shared=shared,
            # the last token of a turn is run only by a next turn that keeps it
            first_row=shared - 1 if shared and self._numbers[shared - 1] in self._unrun else shared,
            results_from=results_from,
        )

    def end(self, begun: TurnPrompt, generation: Generation) -> None:
        """Add a turn that was run."""
        generated = generation.generated_ids
        prompt, start = len(begun.ids), len(self.token_ids)
        self._unrun -= {begun.numbers[begun.first_row]}
        self.token_ids += [*begun.ids[begun.shared :], *generated]
        self._names += self.prompt_names(begun)[begun.shared :]
        follower = SegmentFollower(self._markup, begun.ids)
        self._names += [follower.next(token) for token in generated]
        self._ids = [*begun.ids, *generated]
        self._numbers = [begun.number(place) for place in range(len(self._ids))]
        self._tail += self._numbers[prompt - 1 : len(self._ids) - 1]
        self._unrun.add(self._numbers[-1])
        self.turns.append(
            Turn(
                role="assistant",
                start=start,
                stop=len(self.token_ids),
                prompt_tokens=prompt - begun.shared,
                context=begun.shared if self.generations else None,
            )
        )
        self.generations.append(generation)

    def prompt_names(self, begun: TurnPrompt) -> list[str]:
        """The segment of every place of a turn's prompt."""
        kept = [self._names[number] for number in begun.numbers[: begun.shared]]
        results = len(begun.ids) if begun.results_from is None else begun.results_from
        return kept + [
            TOOL_RESULT if place >= results else "prompt" for place in range(begun.shared, len(begun.ids))
        ]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the first turn's prompt."""
        return self.turns[0].prompt_tokens

    @property
    def segments(self) -> list[Segment]:
        """The runs of tokens of one name, without gaps."""
        return list(runs(self._names))

    @property
    def rows(self) -> int:
        """Tokens that the model ran."""
        return len(self.token_ids) - len(self._unrun)

    def first_prompt(self, begun: TurnPrompt) -> int:
        """Number of tokens of the first turn's prompt; `begun` may be that turn."""
        return self.turns[0].prompt_tokens if self.turns else len(begun.ids)

    def due_tokens(self, positions: Positions, *, tail_only: bool) -> list[int]:
        """The tokens whose rows a hook must have, ascending, counted from the finished turns.

        Args:
            tail_only: the hook has rows from the last token of a turn's prompt on.

        Raises:
            CaptureFailed: `positions` lists a token that the sample does not have or the model never ran.
        """
        ran = [number for number in range(len(self.token_ids)) if number not in self._unrun]
        has = sorted(set(self._tail)) if tail_only else ran
        selection = Selection.of(positions, self.prompt_tokens)
        if selection.last_only:
            return has[-1:]
        missing = (
            sorted(selection.numbers.difference(ran)) if isinstance(selection.numbers, frozenset) else []
        )
        if missing:
            raise CaptureFailed(
                f"positions lists token {missing[0]}, which the model did not run in this sample: it has "
                f"{len(self.token_ids)} tokens in {len(self.turns)} turns, {self.prompt_tokens} of them in "
                "the first prompt, and the last of a turn is run only where the next turn keeps it"
            )
        return [number for number in has if selection.holds(number, self._names[number])]
