"""Blocks of rows from one pool, counted against a budget.

A block holds the rows of up to 64 kept tokens of one request for every point of a layout. Blocks of a common
beginning belong to several requests at once. Blocks that come back are used again, so the system gives fresh
pages only once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from evals.plans import BLOCK_ROWS
from worker.engine.capture.selection import Columns, stored_dtype
from worker.engine.locations import ModelHooks
from worker.engine.model.host_memory import host_empty
from worker.engine.runs import DTYPES, CapturePlan

BLOCK = BLOCK_ROWS


class Budget:
    """Bytes of one memory, counted by all that take of it."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0

    @property
    def free(self) -> int:
        return self.total - self.used

    def take(self, size: int) -> bool:
        """Count `size` bytes if they fit."""
        if size > self.free:
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        self.used -= size


@dataclass(frozen=True, slots=True)
class Group:
    """Points whose rows have one width and one dtype."""

    locations: tuple[str, ...]  # in execution order
    names: tuple[tuple[str, ...], ...]  # hooks of each location
    width: int
    source: torch.dtype  # as the model computes the rows
    stored: torch.dtype


@dataclass(frozen=True, slots=True)
class Layout:
    """Points of a plan with rows of the same tokens.

    Attributes:
        tail: the points exist only for tokens whose logits are computed.
    """

    groups: tuple[Group, ...]
    tail: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's stored rows."""
        return sum(len(g.locations) * g.width * g.stored.itemsize for g in self.groups)

    @property
    def staged_bytes(self) -> int:
        """Bytes of one token's rows as the model computes them."""
        return sum(len(g.locations) * g.width * g.source.itemsize for g in self.groups)

    def empty(self, rows: int) -> list[Tensor]:
        """A tensor [points, rows, width] for each group, uninitialised, on the host."""
        return [host_empty((len(g.locations), rows, g.width), g.stored) for g in self.groups]

    def staging(self, rows: int, device: torch.device) -> list[Tensor]:
        """The same on a device, as the model computes the rows."""
        return [
            torch.empty(len(g.locations), rows, g.width, dtype=g.source, device=device) for g in self.groups
        ]


def layouts_of(hooks: ModelHooks, plan: CapturePlan) -> list[Layout]:
    """Layouts of a plan's points: those with all tokens, then those with the last ones alone.

    Raises:
        UnknownHook: the model has no such hook.
        CaptureFailed: a hook has too few columns.
    """
    columns, asked = Columns(plan.shaping.columns), DTYPES.get(plan.dtype)
    alike: dict[bool, dict[tuple[int, torch.dtype], list[tuple[str, tuple[str, ...]]]]] = {}
    for location, names in hooks.reads(plan.hooks):
        info = hooks.structure.module_tensors[location]
        key = (columns.width(info.width, names[0]), getattr(torch, info.dtype))
        alike.setdefault(info.tail_only, {}).setdefault(key, []).append((location, names))
    layouts = []
    for tail, groups in sorted(alike.items()):
        made = [
            Group(
                tuple(location for location, _ in points),
                tuple(names for _, names in points),
                width,
                source,
                stored_dtype(source, asked),
            )
            for (width, source), points in groups.items()
        ]
        layouts.append(Layout(tuple(made), tail))
    return layouts


@dataclass(slots=True, eq=False)
class Block:
    """Rows of up to 64 tokens."""

    layout: Layout
    parts: list[Tensor]  # of each group, [points, 64, width]
    tokens: list[int] = field(default_factory=list)  # token numbers
    users: int = 1


class Pool:
    """Blocks on the host. Used by the engine's thread only."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._free: dict[Layout, list[Block]] = {}

    def take(self, layout: Layout) -> Block | None:
        """Take a block; None if the budget is spent."""
        if self._free.get(layout):
            block = self._free[layout].pop()
            block.users = 1
            block.tokens = []
            return block
        size = layout.row_bytes * BLOCK
        while not self.budget.take(size):
            if not self.shrink():
                return None
        try:
            return Block(layout, layout.empty(BLOCK))
        except BaseException:
            self.budget.give(size)
            raise

    def shrink(self) -> bool:
        """Let go of a free block; False if there is none."""
        blocks = next((blocks for blocks in self._free.values() if blocks), None)
        if blocks is None:
            return False
        self.budget.give(blocks.pop().layout.row_bytes * BLOCK)
        return True

    def give(self, blocks: Sequence[Block]) -> None:
        """Give blocks back; one with several users stays until its last user gives it back."""
        for block in blocks:
            block.users -= 1
            if not block.users:
                self._free.setdefault(block.layout, []).append(block)

    def close(self) -> None:
        """Let go of all free blocks."""
        while self.shrink():
            pass
