"""Copies of a capture's points: which rows of a pass go to which places of their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.capture.directions import Directions
from worker.engine.capture.encoders import Encoder
from worker.engine.capture.layouts import BLOCK
from worker.engine.capture.pool import SPARE, Region
from worker.engine.capture.record import LayoutRows, Record
from worker.engine.capture.selection import Columns, encoded, index_on

#: layouts of captures that are open or were open last, and widths and dtypes of a layout's points
_MOST_LAYOUTS, _MOST_GROUPS = 32, 8


class FixedIndices:
    """Memory for the indices of passes of fixed shape, which graphs read.

    Args:
        rows: of the largest of these passes.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self._memory = torch.empty(_MOST_LAYOUTS, _MOST_GROUPS, rows, dtype=torch.int64, device=device)
        self._free = list(range(_MOST_LAYOUTS))

    def take(self, groups: int) -> tuple[int, Tensor] | None:
        """A number, and int64 [groups, rows] that stays where it is; None if there is no more."""
        if groups > _MOST_GROUPS or not self._free:
            return None
        number = self._free.pop()
        return number, self._memory[number, :groups]

    def give(self, number: int) -> None:
        self._free.append(number)


class LayoutCopies:
    """Copies of one layout's rows in one pass after the other.

    Args:
        fixed: memory of the index in passes of fixed shape; None: it is made when it is needed.

    Attributes:
        number: of its memory in `fixed`.
        encoder: of a layout of latents, while a request has it.
        directions: of a layout of readouts, while a request has it.
        owners: requests with rows in this pass, and their token numbers.
    """

    def __init__(self, region: Region, columns: Columns, fixed: FixedIndices | None = None) -> None:
        self.region, self.layout = region, region.layout
        self._columns, self._device = columns, region.slabs[0].device
        self._sizes = [len(group.locations) * BLOCK for group in region.layout.groups]
        self._places: list[int] = []  # of the written rows in the tensors of the pass
        self._targets: list[list[int]] = []  # of the same rows in each group's slab
        self._spread = self._selects = False
        self.encoder: Encoder | None = None
        self.directions: Directions | None = None
        self._selected: dict[torch.device, Tensor] = {}
        self._index: Sequence[Tensor] = ()  # of each group
        groups = len(region.layout.groups)
        taken = None if fixed is None else fixed.take(groups)
        self.number: int | None = None
        if taken is not None:
            self.number, self._fixed = taken
        else:
            self._fixed = torch.empty(groups, 0, dtype=torch.int64, device=self._device)
        self.owners: list[tuple[Record, LayoutRows, Sequence[int]]] = []

    def begin(self, spread: int) -> None:
        """Begin a pass; with `spread` rows, all of them are written, those of nobody to the spare block."""
        self.owners, self._selected, self._spread = [], {}, spread > 0
        self._places = list(range(spread))
        self._targets = [[SPARE * size + i % BLOCK for i in range(spread)] for size in self._sizes]

    def end(self) -> None:
        """Let go of what a pass has."""
        self.owners, self._selected, self._index = [], {}, ()

    def add(self, record: Record, own: LayoutRows, tokens: Sequence[int], places: Sequence[int]) -> None:
        """Write rows of a request's tokens, which lie at these places in the tensors of the pass."""
        self.owners.append((record, own, tokens))
        if not self._spread:
            self._places += places
        at = 0
        for block, first, count in own.segments(len(tokens)):
            for size, targets in zip(self._sizes, self._targets, strict=True):
                start = block * size + first
                if self._spread:
                    for i in range(count):
                        targets[places[at + i]] = start + i
                else:
                    targets.extend(range(start, start + count))
            at += count

    def ready(self, count: int, *, fixed: bool) -> None:
        """Make the index of a pass of `count` rows; a `fixed` one is always in the same memory."""
        self._selects = len(self._places) != count
        if not fixed:
            self._index = index_on(self._targets, self._device).unbind()
            return
        if self._fixed.shape[1] < count:
            self._fixed = self._fixed.new_empty(len(self._targets), max(count, BLOCK))
        index = self._fixed[:, :count]
        self._index = index.copy_(index_on(self._targets, self._device)).unbind()

    def writes(self, group: int) -> list[tuple[Tensor, Tensor]]:
        """Targets of each point of a group in this pass: rows [.., width], and their numbers."""
        index = self._index[group]
        return [(target, index) for target in self.region.points[group]]

    def take(self, target: Tensor, index: Tensor, rows: Tensor) -> None:
        """Copy a point's rows [tokens, width] to their blocks; see `writes`."""
        rows = self._chosen(rows)
        if not self._columns.all:
            rows = self._columns.of(rows)
        if target.dtype is torch.uint8:
            rows = encoded(rows)
        if rows.dtype != target.dtype or rows.device != self._device:
            rows = rows.to(self._device, target.dtype)
        target.index_copy_(0, index, rows)

    @property
    def computed_at(self) -> list[str]:
        """Locations from whose rows the layout's are computed."""
        return list(dict.fromkeys(self.layout.groups[0].locations)) if self.layout.is_computed else []

    def compute(self, location: str, rows: Tensor, *, padded: bool) -> None:
        """Write what is computed of the rows [tokens, width] at a location to its blocks.

        Args:
            padded: see `Encoder.top`.
        """
        rows = self._chosen(rows)
        for start in range(0, len(rows), BLOCK):
            stop = start + BLOCK
            if self.directions is not None:
                index = self._index[0][start:stop]
                for point, values in self.directions.values(location, rows[start:stop]):
                    self.region.points[0][point].index_copy_(0, index, values)
                continue
            assert self.encoder is not None
            count = self.layout.groups[0].width
            found = self.encoder.top(rows[start:stop], count, padded=padded)
            for group, part in enumerate(found):
                index = self._index[group][start:stop]
                self.region.points[group][0].index_copy_(0, index, part)

    def _chosen(self, rows: Tensor) -> Tensor:
        """The rows of a pass that are written."""
        if not self._selects:
            return rows
        if rows.device not in self._selected:
            self._selected[rows.device] = index_on(self._places, rows.device)
        return rows.index_select(0, self._selected[rows.device])

    @property
    def memory(self) -> tuple[object, ...]:
        """Identity of what a pass of fixed shape writes to, and of the weights that it reads for it.

        An SAE and directions belong to the layout: whenever they lie at the same place, they are the same.
        """
        slabs = (slab.data_ptr() for slab in self.region.slabs)
        weights = self.encoder or self.directions
        return (id(self), self._fixed.data_ptr(), *slabs, *(() if weights is None else weights.places))

    def written(self) -> list[tuple[Tensor, Tensor]]:
        """Slabs of all groups as rows [.., width], and the numbers of rows that this pass writes.

        Rows of nobody are among them: those that go to one place of the spare block are equal.
        """
        found = []
        for group, targets in enumerate(self._targets):
            slab, size = self.region.slabs[group], self._sizes[group]
            own = [row + p for row in targets for p in range(0, size, BLOCK)]
            found.append((slab.view(-1, slab.shape[-1]), index_on(own, self._device)))
        return found


@dataclass(slots=True, eq=False)
class Points:
    """Copies of one capture, and the number of live requests that have it."""

    key: tuple[object, ...]
    copies: list[LayoutCopies]
    number: int  # in the order in which captures came
    users: int = 0
    is_open: bool = False  # passes of fixed shape write its rows, whoever takes part

    @property
    def computes(self) -> bool:
        """Whether some of its rows are latents or readouts."""
        return any(copies.layout.is_computed for copies in self.copies)

    @property
    def regions(self) -> list[Region]:
        return [copies.region for copies in self.copies]
