"""Decode steps gathered into blocks, so that no tensor of the model outlives its step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker.engine.model.host_memory import host_empty


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

    A block is [steps, batch, points of the group, width]. Freed, it is used again: on a CPU by
    `host_memory`, on a GPU by torch's allocator, which knows what a side stream still reads.

    Args:
        steps: most that a block holds.
    """

    def __init__(self, groups: Sequence[Group], *, batch: int, steps: int) -> None:
        self._groups = tuple(groups)
        self._batch = batch
        self._most = steps
        self._filling: list[torch.Tensor] = []
        self.steps = 0  # in the blocks that are being filled

    @property
    def full(self) -> bool:
        return self.steps >= self._most

    def add(self, values: Sequence[torch.Tensor]) -> None:
        """Copy one step: a tensor [batch, 1, ...] per point."""
        if not self.steps:
            self._filling = [self._block(group) for group in self._groups]
        for group, block in zip(self._groups, self._filling, strict=True):
            tensors = [values[point] for point in group.points]
            if any(t.ndim != 3 for t in tensors):
                tensors = [t.reshape(self._batch, 1, -1) for t in tensors]
            torch.cat(tensors, dim=1, out=block[self.steps])
        self.steps += 1

    def take(self) -> list[torch.Tensor]:
        """The filled part of each group's block; further steps go into new blocks."""
        blocks, steps = self._filling, self.steps
        self.clear()
        return [block[:steps] for block in blocks]

    def clear(self) -> None:
        self._filling, self.steps = [], 0

    def _block(self, group: Group) -> torch.Tensor:
        shape = (self._most, self._batch, len(group.points), group.width)
        if group.device.type == "cpu":
            return host_empty(shape, group.dtype)
        return torch.empty(shape, dtype=group.dtype, device=group.device)
