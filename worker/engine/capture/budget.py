"""Bytes of one memory, divided among those that use it."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: places at which pieces of a device's memory begin, as torch's allocator has them
_ALIGNED = 512


class Budget:
    """Bytes of one memory, counted by all that take of it."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0

    @property
    def free(self) -> int:
        return self.total - self.used

    @property
    def largest(self) -> int:
        """Bytes of the largest piece that could be taken."""
        return self.free

    def take(self, size: int) -> bool:
        """Count `size` bytes if they fit."""
        if size > self.free:
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        self.used -= size

    def piece(self, size: int, device: torch.device, *, small: bool = False) -> Piece | None:
        """Take memory for tensors; None if it does not fit. torch allocates each tensor.

        Args:
            small: many of its like come and go.
        """
        return Piece(0, size, size, device) if self.take(size) else None

    def remove(self, piece: Piece) -> None:
        """Give the memory of a piece back. What the device does after all work so far may use it again."""
        self.give(piece.taken)


@dataclass(slots=True, eq=False)
class Piece:
    """Memory for tensors of a device.

    Attributes:
        start: its place in `memory`.
        size: bytes for tensors.
        taken: bytes that it counts.
        device: of its tensors.
        memory: that it is a part of; None: torch allocates its tensors.
        used: bytes of its tensors so far.
    """

    start: int
    size: int
    taken: int
    device: torch.device
    memory: Tensor | None = None
    used: int = 0

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A new tensor, with any content.

        Raises:
            MemoryError: the piece is too small for it.
        """
        if self.memory is None:
            return torch.empty(shape, dtype=dtype, device=self.device)
        size = dtype.itemsize
        for number in shape:
            size *= number
        if self.used + size > self.size:
            raise MemoryError(f"{size:,} bytes do not fit in a piece of {self.size - self.used:,}")
        begin = self.start + self.used
        self.used += size
        return self.memory[begin : begin + size].view(dtype).view(*shape)


class DeviceMemory(Budget):
    """Memory of a device that is taken at once, so what lies in a piece of it stays where it is.

    Large pieces lie at its beginning, small ones at its end, so that these leave no gaps between the large.

    Raises:
        Exception: the device has not so much.
    """

    def __init__(self, device: torch.device, total: int) -> None:
        super().__init__(total)
        self._bytes = torch.empty(total, dtype=torch.uint8, device=device)
        self._pieces: list[Piece] = []  # by start

    @property
    def largest(self) -> int:
        return max((stop - start for start, stop in self._gaps()), default=0)

    def piece(self, size: int, device: torch.device, *, small: bool = False) -> Piece | None:
        if not size:
            return Piece(0, 0, 0, device, self._bytes)
        taken = -(-size // _ALIGNED) * _ALIGNED
        gaps = [(start, stop) for start, stop in self._gaps() if stop - start >= taken]
        if not gaps:
            return None
        start = (gaps[-1][1] - taken) // _ALIGNED * _ALIGNED if small else gaps[0][0]
        made = Piece(start, size, taken, device, self._bytes)
        insort(self._pieces, made, key=lambda one: one.start)
        self.used += taken
        return made

    def remove(self, piece: Piece) -> None:
        if piece.taken:
            self._pieces.remove(piece)
        super().remove(piece)

    def _gaps(self) -> list[tuple[int, int]]:
        edges = [(one.start, one.start + one.taken) for one in self._pieces]
        whole = self.total // _ALIGNED * _ALIGNED
        stops = [0, *(stop for _, stop in edges)]
        starts = [*(start for start, _ in edges), whole]
        return [(a, b) for a, b in zip(stops, starts, strict=True) if b > a]
