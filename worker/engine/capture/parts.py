"""Tokens of one pass, and what happens to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from worker.engine.edits import Change

if TYPE_CHECKING:
    from worker.engine.capture.points import Points
    from worker.engine.capture.record import Record


@dataclass(slots=True, eq=False)
class Context:
    """Tokens of one request, whose keys and values a forward keeps.

    Attributes:
        tokens: prompt and answer; the newest token of an answer is not computed.
        most: tokens that the model runs at most.
        priority: it may use room that is spared for such requests.
        place: of the forward: a range of the arena, or a cache.
        record: takes the rows.
        points: captures of its plan.
        computed: tokens whose keys and values are kept.
    """

    tokens: list[int]
    most: int
    priority: bool = False
    place: Any = None
    computed: int = 0
    record: Record | None = None
    points: Points | None = None


class Write(NamedTuple):
    """One edit of some tokens of a request."""

    location: str
    key: tuple[int, tuple[object, ...]]  # its place among the request's edits, and its kind
    change: Change
    tokens: Sequence[int]


@dataclass(slots=True, eq=False)
class Part:
    """Tokens `start` to `stop - 1` of one request in a pass.

    Attributes:
        first: place of the first token in the pack.
        logits: of how many of its last tokens the logits are computed.
        rows: token numbers whose rows are captured.
        writes: edits of these tokens.
    """

    context: Context
    start: int
    stop: int
    first: int = 0
    logits: int = 0
    rows: Sequence[int] = ()
    writes: Sequence[Write] = ()

    @property
    def count(self) -> int:
        return self.stop - self.start


def in_pack(parts: Sequence[Part]) -> Iterator[int]:
    """Places in the pack of all tokens whose logits are computed, ascending."""
    for part in parts:
        end = part.first + part.count
        yield from range(end - part.logits, end)
