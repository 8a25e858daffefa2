"""Blocks of rows, on the device that computes them.

A block holds the rows of up to 64 kept tokens of one request for every point of a layout. The blocks of a
layout are its region: one tensor [blocks, points, 64, width] for each group of points, on the model's device.

On a CPU the sink reads the rows where the pass has written them. The system gives the pages of a region as
rows reach them, so each block counts when it is first used, and blocks that come back are used again.

On a GPU a pool lives as long as the model's arena, in memory that is taken when the model is loaded. A
region takes a piece of it when the first request with its layout begins, and keeps it until another layout
needs it. So graphs write to the same places from run to run. A block that leaves is copied to pinned host
memory, and its place in the region is free for what the device does after the copy. A block has that host
memory from its start, so it can always leave.

Blocks of a shared prefix belong to several requests at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from worker.engine.capture.budget import Budget, Piece
from worker.engine.capture.layouts import BLOCK, Layout
from worker.engine.capture.pinned import Copies, PinnedBlock, PinnedBlocks, Transfer
from worker.engine.model.host_memory import HostPages

#: the place of a region that belongs to no request: rows that nobody keeps go there
SPARE = 0
#: share of a GPU's free bytes that one region leaves to others if it would take all
_LEFT = 8


@dataclass(slots=True, eq=False)
class Block:
    """Rows of up to 64 tokens.

    Attributes:
        place: in its region; None once it is on the host alone.
        tokens: token numbers of its first rows.
    """

    region: Region
    place: int | None
    pinned: PinnedBlock | None = None
    copied: Any = None  # event of the copy to the host
    tokens: list[int] = field(default_factory=list)
    users: int = 1

    def rows(self, group: int) -> Tensor:
        """The rows of a group's points on the device, [points, tokens, width]."""
        assert self.place is not None
        return self.region.slabs[group][self.place][:, : len(self.tokens)]

    def on_host(self, group: int) -> Tensor:
        """The same on the host. Called in the delivery thread, after `wait`."""
        if self.pinned is None:
            return self.rows(group)
        return self.pinned.rows[group][:, : len(self.tokens)]

    def wait(self) -> None:
        """Wait until the rows are on the host."""
        if self.copied is not None:
            self.copied.synchronize()

    def finite(self, group: int) -> bool:
        """Whether the device has found all numbers to be finite; False if it did not look."""
        return self.pinned is not None and bool(torch.isfinite(self.pinned.extremes[group]).all())


class Region:
    """Blocks of one layout.

    Args:
        piece: memory of a GPU; None: pages of the host.

    Attributes:
        slabs: [blocks, points, 64, width] of each group.
        points: of each group, for each point its rows [.., width], so that row `block * points * 64 + i` is
            row `i` of a block.
        users: live requests with the layout.
        taken: places that blocks have now.
    """

    def __init__(self, layout: Layout, blocks: int, piece: Piece | None = None) -> None:
        self.layout, self.blocks, self.piece = layout, blocks, piece
        shapes = [(blocks, len(group.locations), BLOCK, group.held_width) for group in layout.groups]
        self._pages: list[HostPages] = []
        if piece is None:
            self._pages = [
                HostPages(shape, group.held) for shape, group in zip(shapes, layout.groups, strict=True)
            ]
            self.slabs = [pages.tensor for pages in self._pages]
        else:
            self.slabs = [
                piece.tensor(shape, group.held) for shape, group in zip(shapes, layout.groups, strict=True)
            ]
        self.points: list[list[Tensor]] = []
        for slab in self.slabs:
            flat = slab.view(-1, slab.shape[-1])
            starts = range(0, slab.shape[1] * BLOCK, BLOCK)
            self.points.append([flat.narrow(0, start, len(flat) - start) for start in starts])
        self.pinned: PinnedBlocks | None = None
        self.users = self.taken = 0
        self.free: deque[tuple[int, Any]] = deque()  # places, each with the event of a copy from there
        self.unused: list[int] = []  # places without pages
        self.next = SPARE + 1  # the first place that was never used

    @property
    def idle(self) -> bool:
        return not self.users and not self.taken

    @property
    def place(self) -> tuple[int, int]:
        """Place and number of its blocks: a later region of its layout there writes to the same rows."""
        return 0 if self.piece is None else self.piece.start, self.blocks

    def release(self, place: int) -> None:
        """Give the pages of a free place back to the system."""
        for pages, slab in zip(self._pages, self.slabs, strict=True):
            size = slab[0].nbytes
            pages.release(place * size, (place + 1) * size)
        self.unused.append(place)


class Pool:
    """Regions of all layouts, of a run or of a model. Used by the engine's thread only.

    Args:
        memory: of the device; on a CPU, that of `host`. A `DeviceMemory` if it outlives a run.
        host: of the host, for blocks.
        blocks: blocks of a region on a GPU, if there is room for so many.
    """

    def __init__(self, device: torch.device, memory: Budget, host: Budget, *, blocks: int = 2) -> None:
        self.device, self.memory, self.host = device, memory, host
        self.on_gpu = device.type == "cuda"
        self.copies = Copies(device)
        self._most = blocks + 1  # and the spare one
        self._regions: dict[Layout, Region] = {}  # the one whose last request ended longest ago first
        self._pinned: dict[Layout, PinnedBlocks] = {}

    def open(self, layout: Layout, *, sums: int = 0) -> Region | None:
        """The region of a layout for one more request; None if the device has no room for it.

        Args:
            sums: bytes that each request takes of the device beside its blocks.
        """
        region = self._regions.get(layout) or self._made(layout, sums)
        if region is None:
            return None
        self._regions[layout] = region
        region.users += 1
        return region

    def close(self, region: Region) -> None:
        """End the use of a region by a request."""
        region.users -= 1
        if self._regions.get(region.layout) is region:
            self._regions[region.layout] = self._regions.pop(region.layout)

    def holds(self, region: Region) -> bool:
        """Whether a region still has its memory."""
        return self._regions.get(region.layout) is region

    def take(self, region: Region) -> Block | None:
        """Take a block; None if there is no memory for it."""
        pinned = self._pinned_block(region) if region.pinned is not None else None
        if region.pinned is not None and pinned is None:
            return None
        place = self._place(region)
        if place is None:
            if region.pinned is not None and pinned is not None:
                region.pinned.give(pinned)
            return None
        region.taken += 1
        return Block(region, place, pinned)

    def give(self, blocks: Iterable[Block]) -> None:
        """Give blocks back; one with several users stays until its last user gives it back."""
        for block in blocks:
            block.users -= 1
            if block.users:
                continue
            if block.place is not None:
                self._vacate(block, None)
            if block.pinned is not None and block.region.pinned is not None:
                block.region.pinned.give(block.pinned)

    def leave(self, blocks: Sequence[Block]) -> None:
        """Begin to copy blocks to the host, and free their places. On a CPU they stay where they are."""
        moving = [(block, block.pinned) for block in blocks if block.place is not None]
        transfers = [
            Transfer(
                [slab[block.place] for slab in block.region.slabs],
                len(block.tokens),
                pinned,
            )
            for block, pinned in moving
            if pinned is not None
        ]
        if not transfers:
            return
        event = self.copies.begin(transfers)
        for block, _ in moving:
            block.copied = event
            self._vacate(block, event)

    @property
    def idle(self) -> bool:
        """Whether no request has a region or a block."""
        return all(region.idle for region in self._regions.values())

    def reserve(self, size: int) -> Piece | None:
        """Memory of the device beside the blocks; None if it does not fit."""
        while (piece := self.memory.piece(size, self.device, small=True)) is None:
            if not self._gives_way(self.memory):
                return None
        return piece

    def reserve_on_host(self, size: int) -> bool:
        """The same of the host's memory."""
        return self._counted(self.host, size)

    def clear(self) -> None:
        """Let go of all memory that no request has."""
        while self._shrink() or self._forget_idle():
            pass

    def _made(self, layout: Layout, sums: int) -> Region | None:
        size = layout.block_bytes
        if not self.on_gpu:
            while self._forget_idle():  # their addresses, of which each region has many
                pass
            return Region(layout, self.host.total // size + 1 + SPARE + 1)
        own = size + sums
        while self.memory.largest < self._most * own and self._forget_idle():
            pass
        free = self.memory.largest
        fitting = self._most if self._most * own <= free else (free - free // _LEFT) // own
        blocks = max(fitting, SPARE + 2)
        piece = self.memory.piece(blocks * size, self.device)
        if piece is None:
            return None
        try:
            region = Region(layout, blocks, piece)
        except BaseException:
            self.memory.remove(piece)
            raise
        for known in [known for known in self._pinned if known not in self._regions]:
            if self._pinned[known].empty:
                del self._pinned[known]
        if layout.kept:
            region.pinned = self._pinned.setdefault(layout, PinnedBlocks(layout, self.host))
        return region

    def _place(self, region: Region) -> int | None:
        if region.free:
            if not self.on_gpu:
                return region.free.pop()[0]  # its pages are warm
            place, event = region.free.popleft()  # its copy began first
            if event is not None:
                torch.cuda.current_stream(self.device).wait_event(event)
            return place
        if not region.unused and region.next == region.blocks:
            return None
        if not self.on_gpu and not self._counted(self.host, region.layout.block_bytes):
            return None
        if region.unused:
            return region.unused.pop()
        region.next += 1
        return region.next - 1

    def _pinned_block(self, region: Region) -> PinnedBlock | None:
        assert region.pinned is not None
        while (block := region.pinned.take()) is None:
            if not self._shrink():
                return None
        return block

    def _vacate(self, block: Block, event: Any) -> None:
        assert block.place is not None
        block.region.free.append((block.place, event))
        block.region.taken -= 1
        if block.pinned is not None:
            block.place = None

    def _counted(self, budget: Budget, size: int) -> bool:
        """Count bytes, for which free memory of other uses goes."""
        while not budget.take(size):
            if not self._gives_way(budget):
                return False
        return True

    def _gives_way(self, budget: Budget) -> bool:
        """Let go of free memory; False if there is none."""
        shared = not self.on_gpu or budget is self.host
        return (shared and self._shrink()) or (budget is self.memory and self._forget_idle())

    def _shrink(self) -> bool:
        """Let go of free memory of the host; False if there is none."""
        if self.on_gpu:
            return any(pinned.shrink() for pinned in self._pinned.values())
        region = next((region for region in self._regions.values() if region.free), None)
        if region is None:
            return False
        region.release(region.free.popleft()[0])
        self.host.give(region.layout.block_bytes)
        return True

    def _forget_idle(self) -> bool:
        """Let go of the region that was used longest ago; False if all are in use."""
        region = next((region for region in self._regions.values() if region.idle), None)
        if region is None:
            return False
        del self._regions[region.layout]
        if region.piece is None:
            self.host.give(len(region.free) * region.layout.block_bytes)
        else:
            self.copies.settle()  # what takes its memory next must not overtake them
            self.memory.remove(region.piece)
        return True
