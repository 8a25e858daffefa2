"""Decode steps gathered into blocks, so that no tensor of the model outlives its step."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from worker.engine.host_memory import host_empty


@dataclass(frozen=True, slots=True)
class Group:
    """Points whose decode rows go into one block: of equal width and dtype, on one device."""

    points: tuple[int, ...]
    width: int
    dtype: torch.dtype
    device: torch.device


def groups_of(values: Sequence[torch.Tensor]) -> list[Group]:
    """Sort points into groups, by one step's tensors [batch, 1, ...]."""
    found: dict[tuple[int, torch.dtype, torch.device], list[int]] = {}
    for point, value in enumerate(values):
        found.setdefault((value[0, 0].numel(), value.dtype, value.device), []).append(point)
    return [Group(tuple(points), *kind) for kind, points in found.items()]


class StepBlocks:
    """Fills one block per group, step by step.

    A block is [steps, batch, points of the group, width]. On a CPU the blocks are used again as
    soon as they are given back; on a GPU a copy may still be reading them, and the allocator knows.

    Args:
        steps: most that a block holds.
    """

    def __init__(self, groups: Sequence[Group], *, batch: int, steps: int) -> None:
        self._groups = tuple(groups)
        self._batch = batch
        self._most = steps
        self._filling: list[torch.Tensor] = []
        self._free: list[deque[torch.Tensor]] = [deque() for _ in groups]
        self.steps = 0  # in the blocks that are being filled

    @property
    def full(self) -> bool:
        return self.steps >= self._most

    def add(self, values: Sequence[torch.Tensor]) -> None:
        """Copy one step: a tensor [batch, 1, ...] per point."""
        if not self.steps:
            self._filling = [self._block(i) for i in range(len(self._groups))]
        for group, block in zip(self._groups, self._filling, strict=True):
            tensors = [values[point] for point in group.points]
            if tensors[0].ndim != 3 or any(t.ndim != 3 for t in tensors):
                tensors = [t.reshape(self._batch, 1, -1) for t in tensors]
            torch.cat(tensors, dim=1, out=block[self.steps])
        self.steps += 1

    def take(self) -> tuple[list[torch.Tensor], Callable[[], None]]:
        """The filled part of each group's block, and what gives the blocks back; begins anew."""
        blocks, steps = self._filling, self.steps
        self._filling, self.steps = [], 0

        def give_back() -> None:
            for free, group, block in zip(self._free, self._groups, blocks, strict=True):
                if group.device.type == "cpu":
                    free.append(block)

        return [block[:steps] for block in blocks], give_back

    def clear(self) -> None:
        self._filling, self.steps = [], 0
        for free in self._free:
            free.clear()

    def _block(self, group: int) -> torch.Tensor:
        try:
            return self._free[group].popleft()
        except IndexError:
            of = self._groups[group]
            shape = (self._most, self._batch, len(of.points), of.width)
            if of.device.type == "cpu":
                return host_empty(shape, of.dtype)
            return torch.empty(shape, dtype=of.dtype, device=of.device)
