"""Rows of tables on a device."""

import heapq

from torch import Tensor


class TableRows:
    """Numbers of rows; the lowest free one is taken first, so tables stay small.

    Attributes:
        size: rows that a table needs.
    """

    def __init__(self) -> None:
        self.size = 0
        self._free: list[int] = []

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self.size += 1
        return self.size - 1

    def give(self, row: int) -> None:
        heapq.heappush(self._free, row)


def widened(table: Tensor, slots: int) -> Tensor:
    """A table [columns, slots] with room for at least so many slots, and the numbers that it had."""
    have = table.shape[1]
    if slots <= have:
        return table
    made = table.new_zeros(table.shape[0], 1 << (slots - 1).bit_length())
    made[:, :have].copy_(table)
    return made
