"""Rows of all running requests on the device, in places of one size.

A place holds some consecutive rows of one request, for every captured point. Hooks write into it with one
copy per point and step. When it is full, or the request ends, the place goes to the sink as one shard and is
free again after that. So memory does not depend on max_tokens.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor

from worker.engine.locations import Point
from worker.engine.rows.row_writer import stored_dtype

_POLL_SECONDS = 0.1


class PointShape(NamedTuple):
    """Rows of one point."""

    width: int  # of the kept columns
    dtype: torch.dtype  # as the model computes them
    tail_only: bool  # rows exist from the last prompt token on


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Points of one width and dtype, and their rows in all places."""

    points: tuple[int, ...]
    tail_only: bool
    rows: Tensor  # [points, places * size, width]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Segment:
    """Rows of consecutive prompt tokens that several requests share."""

    token: int  # number of the first
    count: int
    parts: Sequence[Tensor]  # of each group, [points, count, width]; meaningless for tail-only points


@dataclass(frozen=True, slots=True, eq=False)
class HeldRows:
    """Rows of the first tokens of a prompt, held for others that begin alike."""

    tokens: int
    segments: tuple[Segment, ...]  # in order, without gaps; each may go on beyond the next one's first row

    def first(self, tokens: int) -> "HeldRows":
        """The first `tokens` of them."""
        return HeldRows(tokens, tuple(one for one in self.segments if one.token < tokens))


class RowBuffers:
    """Places for the rows of requests that capture the same.

    Args:
        points: in execution order.
        shapes: of each point.
        places: how many.
        size: rows of a place.
        dtype: to store numbers with a fraction in; None keeps what the model computes.
        summed: rows are summed up, so they stay as the model computed them.
    """

    def __init__(
        self,
        points: Sequence[Point],
        shapes: Sequence[PointShape],
        *,
        places: int,
        size: int,
        dtype: torch.dtype | None,
        summed: bool,
        device: torch.device,
    ) -> None:
        self.points, self.shapes, self.size, self.device = tuple(points), tuple(shapes), size, device
        alike: dict[tuple[int, torch.dtype, bool], list[int]] = {}
        for point, shape in enumerate(shapes):
            held = shape.dtype if summed else stored_dtype(shape.dtype, dtype)
            alike.setdefault((shape.width, held, shape.tail_only), []).append(point)
        self.groups = [
            Group(
                tuple(own),
                tail_only,
                torch.empty(len(own), places * size, width, dtype=held, device=device),
            )
            for (width, held, tail_only), own in alike.items()
        ]
        self._free = list(range(places))
        #: segments that somebody holds; their rows come to a quarter of the places' at most
        self._segments: WeakSet[Segment] = WeakSet()
        self._most_held = places * size // 4
        self._changed = threading.Condition()

    @property
    def free(self) -> int:
        """Number of free places."""
        with self._changed:
            return len(self._free)

    def take(self) -> int | None:
        """Take a free place; None after a moment without one."""
        with self._changed:
            if not self._free:
                self._changed.wait(_POLL_SECONDS)
            return self._free.pop() if self._free else None

    def give_back(self, place: int) -> None:
        """Free a place; safe to call from any thread."""
        with self._changed:
            self._free.append(place)
            self._changed.notify_all()

    def of(self, group: Group, place: int, count: int) -> Tensor:
        """The first rows of a place, [points, count, width]: one contiguous slice per point."""
        start = place * self.size
        return group.rows[:, start : start + count]

    def hold(self, place: int, start: int, stop: int, token: int) -> Segment | None:
        """Copy rows `start` to `stop - 1` of a place; None if too many are held already.

        Args:
            token: number of the first row's token.
        """
        held = sum(segment.count for segment in self._segments)
        if held + stop - start > self._most_held:
            return None
        parts = [self.of(group, place, stop)[:, start:].clone() for group in self.groups]
        segment = Segment(token, stop - start, parts)
        self._segments.add(segment)
        return segment


def row_bytes(shapes: Sequence[PointShape], dtype: torch.dtype | None, *, summed: bool) -> int:
    """Bytes of one row of every point."""
    return sum(
        shape.width * (shape.dtype if summed else stored_dtype(shape.dtype, dtype)).itemsize
        for shape in shapes
    )
