"""Selection of rows and columns, and their reduction: fields of a capture spec.

`positions` is interpreted here alone. `Selection` is its compiled form for one sample.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from actograph.contract.base import Resource, Spec


def _distinct(value: list[int]) -> list[int]:
    if len(set(value)) != len(value):
        raise ValueError("the numbers must differ")
    return value


class FirstFeatures(Spec):
    """The first columns of every row."""

    first: int = Field(ge=1, le=10_000_000, description="Number of columns.")


class ChosenFeatures(Spec):
    """Columns of every row by number, stored in the order given."""

    indices: Annotated[
        list[Annotated[int, Field(ge=0, le=10_000_000)]],
        Field(min_length=1, max_length=100_000, fail_fast=True),
        AfterValidator(_distinct),
    ] = Field(description="Columns in this order.")


Features = FirstFeatures | ChosenFeatures


SegmentName = Literal["prompt", "think", "answer", "tool_call", "tool_result"]


class Stride(Spec):
    """Tokens 0, k, 2k, ... of prompt and generation, counted from the first token of the prompt."""

    stride: int = Field(ge=1, le=10_000_000, description="Every k-th token.")


TokenIndex = Annotated[int, Field(ge=0, le=1 << 31)]


class TokenRange(Spec):
    """Tokens [start, stop), counted from the first token of the prompt; `stop: null` means no end."""

    start: TokenIndex = Field(0, description="First token.")
    stop: TokenIndex | None = Field(None, description="First token after the range.")

    @model_validator(mode="after")
    def _not_empty(self) -> "TokenRange":
        if self.stop is not None and self.stop <= self.start:
            raise ValueError("stop must be larger than start")
        return self


#: token numbers from the first token of the prompt; -1 is the last token of the prompt
Tokens = Annotated[
    list[Annotated[int, Field(ge=-10_000_000, le=10_000_000, strict=True)]],
    Field(min_length=1, max_length=100_000, fail_fast=True),
    AfterValidator(_distinct),
]
Segments = Annotated[list[SegmentName], Field(min_length=1, max_length=5)]
NamedPositions = Literal["all", "prompt", "generated", "last", "last_prompt"]
#: tokens of a sample and their rows, in capture specs, interventions, comparisons and matrices
Positions = NamedPositions | SegmentName | Stride | TokenRange | Tokens | Segments

#: segments that a model generates
GENERATED_SEGMENTS = frozenset({"think", "answer", "tool_call"})
#: segments and names that exist only in generations
_GENERATED = GENERATED_SEGMENTS | {"generated", "tool_result"}
#: more tokens than any sample has
_ENDLESS = 1 << 40


def needs_generation(positions: object) -> str | None:
    """First of `positions` that only generated tokens can match; None if there is none."""
    names = positions if isinstance(positions, list) else [positions]
    return next((name for name in names if isinstance(name, str) and name in _GENERATED), None)


@dataclass(frozen=True, slots=True)
class Selection:
    """Compiled `positions` of one sample.

    Attributes:
        segments: names of the selected segments; None if token numbers decide.
        numbers: selected token numbers, if `segments` is None.
        last_only: keep only the last selected token that has a row.
    """

    segments: frozenset[str] | None = None
    numbers: range | frozenset[int] = range(_ENDLESS)
    last_only: bool = False

    @classmethod
    def of(cls, positions: Positions, prompt_tokens: int) -> "Selection":
        """Compile `positions`; `prompt_tokens` is the length of the sample's first prompt."""
        match positions:
            case "all":
                return cls()
            case "last":
                return cls(last_only=True)
            case "last_prompt":
                return cls(numbers=range(prompt_tokens - 1, prompt_tokens))
            case "generated":
                return cls(segments=GENERATED_SEGMENTS)
            case Stride():
                return cls(numbers=range(0, _ENDLESS, positions.stride))
            case TokenRange():
                stop = _ENDLESS if positions.stop is None else positions.stop
                return cls(numbers=range(positions.start, stop))
            case str():
                return cls(segments=frozenset([positions]))
            case [str(), *_]:
                return cls(segments=frozenset(str(name) for name in positions))
        return cls(numbers=frozenset(int(p) + prompt_tokens if int(p) < 0 else int(p) for p in positions))

    def holds(self, number: int, segment: str) -> bool:
        """True if a token is selected, by its number and the name of its segment."""
        return number in self.numbers if self.segments is None else segment in self.segments

    def rows(self, first: int, prompt_tokens: int, stop: int) -> Sequence[int]:
        """Selected tokens from `first` to `stop` in a sample of one turn.

        The sizes of segments are unknown in advance. Generated segments count as all generated tokens, and
        segments of several kinds as all tokens. All other selections are exact.
        """
        if self.last_only:
            return range(stop - 1, stop)
        if self.segments is None and isinstance(self.numbers, frozenset):
            return sorted(number for number in self.numbers if first <= number < stop)
        if self.segments is None and isinstance(self.numbers, range):
            start, step = self.numbers.start, self.numbers.step
            low, high = (-(-max(0, edge - start) // step) for edge in (first, stop))
            return self.numbers[low:high]
        if self.segments == frozenset({"prompt"}):
            return range(first, prompt_tokens)
        if self.segments is not None and self.segments <= GENERATED_SEGMENTS:
            return range(prompt_tokens, max(prompt_tokens, stop))
        return range(first, stop)


class Segment(Resource):
    """A named range of a session's tokens, [start, stop)."""

    name: str
    start: int
    stop: int


def needs_segments(positions: Positions) -> bool:
    """Whether only the segments of a session tell which tokens are selected."""
    return Selection.of(positions, 1).segments is not None


def stored_rows(
    positions: Positions, tokens: Sequence[int], *, prompt_tokens: int, ran: int, segments: Iterable[Segment]
) -> list[int]:
    """Rows of a stored tensor whose tokens are selected, ascending.

    Args:
        tokens: the token of each row, ascending.
        ran: number of tokens that the model has read; `last` is the last of these.
        segments: of the session; may be empty unless `needs_segments`.
    """
    selection = Selection.of(positions, prompt_tokens)
    if selection.last_only:
        selection = Selection(numbers=range(ran - 1, ran))
    if selection.segments is None:
        return [row for row, token in enumerate(tokens) if token in selection.numbers]
    spans = [span for span in segments if span.name in selection.segments]
    return [row for row, token in enumerate(tokens) if any(span.start <= token < span.stop for span in spans)]


def consecutive(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges [start, stop) of ascending rows."""
    start = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place] != rows[place - 1] + 1:
            yield rows[start], rows[place - 1] + 1
            start = place


Reduce = Literal["none", "mean", "max", "last"]


class StatsSpec(Spec):
    """Per-channel statistics over the chosen tokens of a sample."""

    threshold: float | None = Field(None, ge=0, allow_inf_nan=False, description="Count larger magnitudes.")
    tensors: bool = Field(True, description="False stores the statistics alone.")


def _spelled_out(value: Any) -> Any:
    if value is True:
        return StatsSpec()
    return None if value is False else value


Stats = Annotated[
    StatsSpec | None, BeforeValidator(_spelled_out, json_schema_input_type=StatsSpec | bool | None)
]
