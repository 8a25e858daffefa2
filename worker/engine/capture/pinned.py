"""Pinned host memory, and copies of blocks to it on a stream of their own. For models on a GPU."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from worker.engine.capture.budget import Budget
from worker.engine.capture.layouts import BLOCK, Layout
from worker.engine.capture.selection import scales
from worker.engine.model.host_memory import pinned_bytes

#: blocks of a chunk of memory, at least, unless memory is short
_CHUNK_BLOCKS = 4


class PinnedBlock(NamedTuple):
    """Memory for one block: of each group [points, 64, width], and whether its rows are finite."""

    rows: Sequence[Tensor]
    extremes: Tensor  # float32 [groups, 2]: the smallest and the largest number
    chunk: int


class PinnedBlocks:
    """Memory for blocks of one layout, in chunks of which each holds several.

    torch rounds pinned memory up to a power of two, so chunks have such sizes.
    """

    def __init__(self, layout: Layout, budget: Budget) -> None:
        self._layout, self._budget = layout, budget
        self._sizes: dict[int, int] = {}  # chunk -> its bytes
        self._counts: dict[int, int] = {}  # chunk -> its blocks
        self._free: list[PinnedBlock] = []
        self._next = 0

    @property
    def empty(self) -> bool:
        """Whether it has no memory."""
        return not self._sizes

    def take(self) -> PinnedBlock | None:
        """Take memory for a block; None if the budget is spent."""
        if not self._free:
            self._grow()
        return self._free.pop() if self._free else None

    def give(self, block: PinnedBlock) -> None:
        self._free.append(block)

    def shrink(self) -> bool:
        """Let go of a chunk whose blocks are all free; False if there is none."""
        free = [block.chunk for block in self._free]
        for chunk, count in self._counts.items():
            if free.count(chunk) == count:
                self._free = [block for block in self._free if block.chunk != chunk]
                self._budget.give(self._sizes.pop(chunk))
                del self._counts[chunk]
                return True
        return False

    def _grow(self) -> None:
        one = self._layout.block_bytes
        size = 1 << (_CHUNK_BLOCKS * one - 1).bit_length()
        while size > self._budget.free and size // 2 >= one:
            size //= 2
        if not self._budget.take(size):
            return
        try:
            memory = pinned_bytes(size)
            extremes = torch.zeros(size // one, len(self._layout.groups), 2, pin_memory=True)
        except BaseException:
            self._budget.give(size)
            raise
        chunk, self._next = self._next, self._next + 1
        self._sizes[chunk], self._counts[chunk] = size, size // one
        for number in range(size // one):
            rows, at = [], number * one
            for group in self._layout.groups:
                shape = (len(group.locations), BLOCK, group.held_width)
                stop = at + shape[0] * shape[1] * shape[2] * group.held.itemsize
                rows.append(memory[at:stop].view(group.held).view(*shape))
                at = stop
            self._free.append(PinnedBlock(rows, extremes[number], chunk))


def checked_numbers(rows: Tensor) -> Tensor | None:
    """Numbers that are finite if all of these rows are; None for integers."""
    if rows.dtype is torch.uint8:
        return scales(rows)
    return rows if rows.is_floating_point() else None


class Transfer(NamedTuple):
    """Rows of one block on their way to the host."""

    slabs: Sequence[Tensor]  # of each group, [points, 64, width] on the device
    filled: int  # rows that hold something
    target: PinnedBlock


class Copies:
    """Copies from a GPU to pinned memory, none of which the host waits for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None

    def begin(self, transfers: Sequence[Transfer]) -> Any:
        """Copy blocks that all work so far has written, beside the work to come; returns their event."""
        compute = torch.cuda.current_stream(self._device)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(compute)
        with torch.cuda.stream(self._stream):
            for slabs, filled, target in transfers:
                for slab, rows, extremes in zip(slabs, target.rows, target.extremes, strict=True):
                    rows.copy_(slab, non_blocking=True)
                    if (numbers := checked_numbers(slab[:, :filled])) is not None:
                        found = torch.stack(torch.aminmax(numbers)).float()
                        extremes.copy_(found, non_blocking=True)
        return self._stream.record_event()

    def fetch(self, tensor: Tensor) -> Tensor:
        """A copy on the host, which is there when the event of `mark` has come."""
        target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return target.copy_(tensor, non_blocking=True)

    def mark(self) -> Any:
        """The event at which the work so far is done."""
        return torch.cuda.current_stream(self._device).record_event()

    def settle(self) -> None:
        """Let what comes after wait for all copies, so that their sources can be freed."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
