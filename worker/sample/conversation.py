"""A sample of one or several turns as one sequence of tokens.

Each turn is a generation of its own. Its prompt is the conversation so far, rendered anew by the chat
template. Templates rewrite earlier turns (Qwen3's drops empty thoughts), so a prompt need not begin with all
earlier tokens. The beginning shared with the turn before is stored once: the sample's sequence is the first
turn's tokens, then each further turn's tokens after the shared beginning. A turn's manifest entry has the
length of that beginning (`context`).

A token number counts in that sequence. A place counts in one turn's own tokens, prompt first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from actograph.contract.errors import CaptureFailed
from actograph.contract.row_selection import Positions, Segment, Selection
from storage.sessions.manifest import Turn
from worker.engine.messages import Generation
from worker.text.segments import Markup, SegmentFollower, runs

TOOL_RESULT = "tool_result"


@dataclass(frozen=True, slots=True)
class TurnPrompt:
    """Prompt of the next turn.

    Attributes:
        ids: all tokens of the prompt.
        numbers: their token numbers.
        shared: number of tokens shared with the turn before.
        first_row: the first place whose row no earlier turn has.
        results_from: the place where results of tools begin; None without results.
    """

    ids: tuple[int, ...]
    numbers: tuple[int, ...]
    shared: int
    first_row: int
    results_from: int | None

    def number(self, place: int) -> int:
        """Token number of a place in the prompt or in the generated tokens after it."""
        if place < len(self.ids):
            return self.numbers[place]
        return self.numbers[-1] + 1 + place - len(self.ids)


class Conversation:
    """The finished turns of one sample.

    Attributes:
        token_ids: the sample's sequence of tokens.
        prompt_tokens: tokens of the first prompt.
        turns: the manifest's entries; empty for a text that was only read.
    """

    def __init__(self, markup: Markup, names: Sequence[str] | None = None) -> None:
        """`names`: the segment of every token, if it is known; otherwise the markup decides."""
        self._markup = markup
        self._known = names
        self.token_ids: list[int] = []
        self.prompt_tokens = 0
        self.generations: list[Generation] = []
        self.turns: list[Turn] = []
        #: segment of every token, of turns that were looked at
        self._names: list[str] = []
        self._unnamed: list[tuple[TurnPrompt, Sequence[int]]] = []
        #: tokens of the latest turn, and their numbers
        self._ids: list[int] = []
        self._numbers: list[int] = []
        #: tokens that the model generated and did not run
        self._unrun: set[int] = set()
        #: tokens with rows of a hook that begins at the last prompt token
        self._tail: set[int] = set()

    def begin(self, prompt_ids: Sequence[int], results_from: int | None = None) -> TurnPrompt:
        """The next turn's prompt, compared with the latest turn; changes nothing."""
        most = min(len(self._ids), len(prompt_ids))
        shared = next((i for i in range(most) if self._ids[i] != prompt_ids[i]), most)
        if shared == len(prompt_ids) and self._numbers[shared - 1] not in self._unrun:
            shared -= 1  # a prompt's last token always runs: the first choice is made from it
        new = range(len(self.token_ids), len(self.token_ids) + len(prompt_ids) - shared)
        return TurnPrompt(
            ids=tuple(prompt_ids),
            numbers=(*self._numbers[:shared], *new),
            shared=shared,
            # a turn's last token runs only in a next turn that keeps it
            first_row=shared - 1 if shared and self._numbers[shared - 1] in self._unrun else shared,
            results_from=results_from,
        )

    def end(self, begun: TurnPrompt, generation: Generation) -> None:
        """Add a finished turn. A text that was only read is a turn without generated tokens."""
        generated, prompt, start = generation.generated_ids, len(begun.ids), len(self.token_ids)
        if not self.generations:
            self.prompt_tokens = prompt
        self._unrun -= {begun.numbers[begun.first_row]}
        self.token_ids += [*begun.ids[begun.shared :], *generated]
        self._unnamed.append((begun, generated))
        self._ids = [*begun.ids, *generated]
        self._numbers = [begun.number(place) for place in range(len(self._ids))]
        if generated:
            self._tail.update(self._numbers[prompt - 1 : -1])
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
        else:
            self._tail.update(self._numbers)
        self.generations.append(generation)

    def prompt_names(self, begun: TurnPrompt) -> list[str]:
        """The segment of every place of a turn's prompt."""
        if self._known is not None:
            return [self._known[number] for number in begun.numbers]
        names = self.names
        kept = [names[number] for number in begun.numbers[: begun.shared]]
        results = len(begun.ids) if begun.results_from is None else begun.results_from
        return kept + [
            TOOL_RESULT if place >= results else "prompt" for place in range(begun.shared, len(begun.ids))
        ]

    @property
    def names(self) -> list[str]:
        """The segment of every token. Jobs without capture never ask for it."""
        if self._known is not None:
            return list(self._known[: len(self.token_ids)])
        unnamed, self._unnamed = self._unnamed, []
        for begun, generated in unnamed:
            self._names += self.prompt_names(begun)[begun.shared :]
            follower = SegmentFollower(self._markup, begun.ids)
            self._names += [follower.next(token) for token in generated]
        return self._names

    @property
    def segments(self) -> list[Segment]:
        """Segments of the sequence, without gaps."""
        return list(runs(self.names))

    @property
    def rows(self) -> int:
        """Number of tokens that the model ran."""
        return len(self.token_ids) - len(self._unrun)

    def first_prompt(self, begun: TurnPrompt) -> int:
        """Number of tokens of the first turn's prompt; `begun` may be that turn."""
        return self.prompt_tokens or len(begun.ids)

    def due_tokens(self, positions: Positions, *, tail_only: bool) -> list[int]:
        """Tokens whose rows a hook must have, ascending, counted from the finished turns.

        Args:
            tail_only: the hook has rows from the last token of a turn's prompt on.

        Raises:
            CaptureFailed: `positions` lists a token that the sample does not have or the model never ran.
        """
        ran = [number for number in range(len(self.token_ids)) if number not in self._unrun]
        if isinstance(positions, list):
            self._check_listed(positions, ran)
        rows = sorted(self._tail) if tail_only else ran
        selection = Selection.of(positions, self.prompt_tokens)
        if selection.last_only:
            return rows[-1:]
        if selection.window is not None:
            stop = len(self.names) - (len(self.names) - 1 in self._unrun)
            chosen = frozenset(selection.among(self.names[:stop]))
            return [number for number in rows if number in chosen]
        if selection.segments is None:
            return [number for number in rows if number in selection.numbers]
        names = self.names
        return [number for number in rows if names[number] in selection.segments]

    def _check_listed(self, positions: Sequence[object], ran: Sequence[int]) -> None:
        """Raise CaptureFailed if a listed token is not among the tokens that the model ran."""
        known, several = set(ran), f" in {len(self.turns)} turns" if len(self.turns) > 1 else ""
        for listed in positions:
            if isinstance(listed, int) and listed + (self.prompt_tokens if listed < 0 else 0) not in known:
                raise CaptureFailed(
                    f"positions lists token {listed}, which the model did not run in this sample: its first "
                    f"prompt has {self.prompt_tokens} tokens, and the model ran {len(ran)} ({ran[0]} to "
                    f"{ran[-1]}){several}; a turn's last token runs only if the next turn keeps it"
                )
