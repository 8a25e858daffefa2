"""The rows of a sample that a capture spec's `positions` means.

Twice, on purpose: `chooser` tells the engine, token by token, and `due_tokens` counts them from
the finished sample, so that what was stored can be checked against something else.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from actograph.contract.errors import CaptureFailed
from actograph.contract.row_selection import Positions, Stride
from storage.sessions.manifest import Segment
from worker.engine.requests import Positions as NamedPositions
from worker.engine.requests import RowChooser
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
    """What the engine is told where no chooser is needed; "all" beside a chooser."""
    match positions:
        case "all" | "prompt" | "generated" | "last" | "last_prompt":
            return positions
    return "all"


def chooser(positions: Positions, markup: Markup) -> RowChooser | None:
    """What tells the engine which rows to keep; None where a name of the engine's own says it."""
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


def due_tokens(
    hook: str,
    positions: Positions,
    prompt: int,
    generated: int,
    segments: Collection[Segment] = (),
    *,
    tail_only: Collection[str] = ("logits",),
) -> range | list[int]:
    """The tokens whose rows a hook must have, for a sample of so many tokens; `generated` is 0 in prefill.

    A range for the forms whose rows are consecutive by definition, a list for the others.

    Args:
        tail_only: hooks that have rows from the last prompt token on, see `estimate.is_tail_only`.

    Raises:
        CaptureFailed: `positions` lists a token that the sample does not have.
    """
    begins = prompt - 1 if hook in tail_only and generated else 0
    first, stop = begins, prompt + max(0, generated - 1)
    match positions:
        case "all":
            return range(first, max(first, stop))
        case "prompt":
            return range(first, prompt)
        case "generated":
            return range(prompt, max(prompt, stop))
        case "last":
            return range(stop - 1, stop)
        case "last_prompt":
            return range(prompt - 1, prompt)
        case Stride():
            return [token for token in range(first, stop) if token % positions.stride == 0]
    wanted: set[int] = set()
    names = {positions} if isinstance(positions, str) else {p for p in positions if isinstance(p, str)}
    for segment in segments:
        if segment.name in names:
            wanted.update(range(segment.start, min(segment.stop, stop)))
    for number in positions:
        if isinstance(number, int):
            token = prompt + number if number < 0 else number
            if not 0 <= token < stop:
                raise CaptureFailed(
                    f"positions lists token {number}, which this sample does not have: its prompt has "
                    f"{prompt} tokens and the model ran {stop} (0 to {stop - 1})"
                )
            wanted.add(token)
    return sorted(token for token in wanted if token >= first)
