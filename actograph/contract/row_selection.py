"""Selection of rows and columns, and their reduction: fields of a capture spec.

`positions` is interpreted here alone. `Selection` is its compiled form for one sample.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import from_json

from actograph.contract.base import Resource, Spec
from actograph.contract.suggestions import did_you_mean


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


class HeadFeatures(Spec):
    """The columns of some heads of `q` and `z`; of `k` and `v`, of some key heads. Head by head, as given."""

    heads: Annotated[
        list[Annotated[int, Field(ge=0, le=10_000)]],
        Field(min_length=1, max_length=10_000, fail_fast=True),
        AfterValidator(_distinct),
    ] = Field(description="Numbers of the heads, in this order.")


Features = FirstFeatures | ChosenFeatures | HeadFeatures


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

_BOUNDS = r"\[(-?\d{1,8}|(-?\d{1,8})?:(-?\d{1,8})?(:[1-9]\d{0,7})?)\]"
_NAMES = "all|prompt|generated|think|answer|tool_call|tool_result"
_NUMBER = re.compile(r"-?\d+")
_SLICE = re.compile(rf"({_NAMES}){_BOUNDS}|turn\.-?\d{{1,4}}({_BOUNDS})?")
_NAMED = (*get_args(NamedPositions), *get_args(SegmentName)[1:])


def _bounds(text: str) -> tuple[str, slice]:
    """Name and slice of `generated[0:3]`, `answer[-1]` or `turn.1`."""
    name, bracket, rest = text.partition("[")
    numbers = [int(part) if part else None for part in rest.rstrip("]").split(":")]
    if len(numbers) > 1:
        return name, slice(*numbers)
    if not bracket or numbers[0] is None:
        return name, slice(None)
    return name, slice(numbers[0], numbers[0] + 1 or None)


def _not_empty(text: str) -> str:
    _, found = _bounds(text)
    start, stop = found.start or 0, found.stop
    if stop is not None and (start < 0) == (stop < 0) and stop <= start:
        raise ValueError(f"{text} selects no token: the second number must be larger")
    return text


#: tokens of a name, or of a turn of the model, counted as Python counts: `generated[0:3]`, `answer[-1]`,
#: `all[::4]`, `turn.0`, `turn.-1[:5]`
TokenSlice = Annotated[
    str,
    Field(pattern=rf"^(({_NAMES}){_BOUNDS}|turn\.-?\d{{1,4}}({_BOUNDS})?)$"),
    AfterValidator(_not_empty),
]


def _from_text(value: Any) -> Any:
    """Read what stands in a text (`0,-1`, `think,answer`, JSON), and a single number, as a list."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    if not isinstance(value, str):
        return value
    if value[:1] in ("[", "{"):
        try:
            parsed = from_json(value, allow_inf_nan=False)
        except ValueError:
            raise _unknown(value, value) from None
        return _from_text(parsed)
    parts = [part.strip() for part in value.split(",")]
    if all(map(_NUMBER.fullmatch, parts)):
        return [int(part) for part in parts]
    if len(parts) > 1:
        if others := [part for part in parts if part not in get_args(SegmentName)]:
            raise _unknown(value, others[0])
        return parts
    if value in _NAMED:
        return value
    if not _SLICE.fullmatch(value):
        raise _unknown(value, value)
    return _not_empty(value)


def _unknown(text: str, part: str) -> ValueError:
    """The error about a text that selects no tokens; `part` is what is wrong in it."""
    name = part.partition("[")[0]
    hint = "" if name in _NAMED else did_you_mean(name, _NAMED)
    end = "" if hint.endswith("?") else "."
    return ValueError(
        f"{text[:100]!r} selects no tokens{hint}{end} Write a name such as generated, a slice such as "
        "answer[-5:], or numbers such as 0,-1"
    )


#: tokens of a sample and their rows, in capture specs, interventions, comparisons, matrices and probes
Positions = Annotated[
    NamedPositions | SegmentName | TokenSlice | Stride | TokenRange | Tokens | Segments,
    BeforeValidator(_from_text),
]

#: segments that a model generates
GENERATED_SEGMENTS = frozenset({"think", "answer", "tool_call"})
#: segments and names that exist only in generations
_GENERATED = GENERATED_SEGMENTS | {"generated", "tool_result", "turn"}
#: more tokens than any sample has
_ENDLESS = 1 << 40


def needs_generation(positions: object) -> str | None:
    """First of `positions` that only generated tokens can match; None if there is none."""
    names = positions if isinstance(positions, list) else [positions]
    return next(
        (name for name in names if isinstance(name, str) and re.split(r"[.\[]", name)[0] in _GENERATED), None
    )


#: most rows of a hook that a capture holds back until a sample has ended
MOST_HELD_BACK = 128


def _counts_from_late_end(positions: object) -> bool:
    """Whether positions count from an end that is known only when the generation has ended."""
    return isinstance(positions, str) and "-" in positions and not positions.startswith("prompt[")


def known_in_the_pass(positions: Any) -> Any:
    """Refuse positions that only the end of the generation decides, as an intervention must."""
    if _counts_from_late_end(positions):
        raise ValueError(
            f"{positions} counts from an end that is known only when the generation has ended. Use numbers "
            "from the beginning here; captures, matrices, probes and comparisons can count from the end"
        )
    return positions


def held_back(positions: Positions) -> tuple[Positions, int] | None:
    """How a capture finds the last tokens of a sample, which are known only at its end.

    Returns: positions that hold all tokens in question, and how many of the last of their rows are enough.
        None if the tokens are known while the model runs them.
    """
    if not _counts_from_late_end(positions):
        return None
    name, window = _bounds(str(positions))
    return ("generated" if name == "turn.-1" else cast(Positions, name)), -(window.start or 0)


def capturable(positions: Any) -> Any:
    """Refuse positions that a capture could find only by holding back all rows of a sample."""
    if (held := held_back(positions)) is None:
        return positions
    if str(positions).startswith("turn.") and not str(positions).startswith("turn.-1["):
        named = "of the turns, the last one alone, as in turn.-1[-5:]"
    elif not 0 < held[1] <= MOST_HELD_BACK:
        named = f"the last {MOST_HELD_BACK} tokens or fewer, as in generated[-5:]"
    else:
        return positions
    raise ValueError(
        f"{positions} counts from an end that is known only when the generation has ended. A capture can "
        f"keep {named}; matrices, probes and comparisons can read any"
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """Compiled `positions` of one sample.

    Attributes:
        segments: names of the selected segments; None if token numbers decide.
        numbers: selected token numbers, if `segments` is None.
        last_only: keep only the last selected token that has a row.
        window: part of the selected tokens, in their order; None keeps all.
        turn: number of the turn whose tokens are selected. Another turn begins where generated tokens follow
            on others.
    """

    segments: frozenset[str] | None = None
    numbers: range | frozenset[int] = range(_ENDLESS)
    last_only: bool = False
    window: slice | None = None
    turn: int | None = None

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
            case str() if "[" in positions or "." in positions:
                return cls._of_slice(*_bounds(positions), prompt_tokens)
            case str():
                return cls(segments=frozenset([positions]))
            case [str(), *_]:
                return cls(segments=frozenset(str(name) for name in positions))
        return cls(numbers=frozenset(int(p) + prompt_tokens if int(p) < 0 else int(p) for p in positions))

    @classmethod
    def _of_slice(cls, name: str, window: slice, prompt_tokens: int) -> "Selection":
        if name == "prompt":
            return cls(numbers=range(prompt_tokens)[window])
        if name == "all":
            from_end = (window.start or 0) < 0 or (window.stop or 0) < 0
            return cls(window=window) if from_end else cls(numbers=range(_ENDLESS)[window])
        turn = int(name.partition(".")[2]) if name.startswith("turn.") else None
        generated = name == "generated" or turn is not None
        segments = GENERATED_SEGMENTS if generated else frozenset([name])
        return cls(segments=segments, window=window, turn=turn)

    def holds(self, number: int, segment: str) -> bool:
        """True if a token is selected, by its number and the name of its segment, without a `window`."""
        return number in self.numbers if self.segments is None else segment in self.segments

    def follow(self) -> Callable[[int, str], bool]:
        """Return `holds` for the tokens of a sample from the first on, called once for each, in order."""
        if self.window is None:
            return self.holds
        window, count, turn, last = range(_ENDLESS)[self.window], 0, -1, False

        def judge(number: int, segment: str) -> bool:
            nonlocal count, turn, last
            before, last = last, self.holds(number, segment)
            if not last:
                return False
            if not before:
                turn, count = turn + 1, count if self.turn is None else 0
            count += 1
            return self.turn in (None, turn) and count - 1 in window

        return judge

    def among(self, names: Sequence[str]) -> Iterable[int]:
        """Selected tokens of a whole sample by the segments of its tokens, all of which the model ran."""
        turns = list[list[int]]()
        for number in (number for number, name in enumerate(names) if self.holds(number, name)):
            if not turns or number != turns[-1][-1] + 1:
                turns.append([])
            turns[-1].append(number)
        if self.turn is not None:
            turns = [turns[self.turn]] if -len(turns) <= self.turn < len(turns) else []
        return [number for turn in turns for number in turn][self.window or slice(None)]

    def rows(self, first: int, prompt_tokens: int, stop: int) -> Sequence[int]:
        """Selected tokens from `first` to `stop` in a sample of one turn.

        The sizes of segments are unknown in advance. Generated segments count as all generated tokens, and
        segments of several kinds as all tokens. All other selections are exact.
        """
        if self.window is not None:
            tokens = range(0 if self.segments is None else prompt_tokens, max(prompt_tokens, stop))
            return [number for number in tokens[self.window] if number >= first]
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
    selection = Selection.of(positions, 1)
    return selection.segments is not None or selection.window is not None


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
    if selection.window is not None:
        names = [span.name for span in segments for _ in range(span.start, span.stop)]
        chosen = frozenset(selection.among(names[:ran]))
        return [row for row, token in enumerate(tokens) if token in chosen]
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
    if isinstance(value, str | int | float) and value is not False:
        raise ValueError('write true, or an object such as {"threshold": 6}')
    return None if value is False else value


Stats = Annotated[
    StatsSpec | None, BeforeValidator(_spelled_out, json_schema_input_type=StatsSpec | bool | None)
]
