"""Linear CKA in one pass over the rows.

CKA = |Y'X|^2 / (|X'X| |Y'Y|) with centred X [n, width of X] and Y [n, width of Y] and Frobenius norms.
Source: Kornblith et al., Similarity of neural network representations revisited (2019), section 3.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class CkaSums:
    """Sums from which linear CKA follows. Those of two shards can be merged, in any order."""

    def __init__(self, width_x: int, width_y: int) -> None:
        self.rows = 0
        self.x, self.y = np.zeros(width_x), np.zeros(width_y)
        self.xx, self.yy = np.zeros((width_x, width_x)), np.zeros((width_y, width_y))
        self.yx = np.zeros((width_y, width_x))

    def add(self, x: Array, y: Array) -> None:
        """Add rows [n, width of X] and the same tokens' or problems' rows [n, width of Y]."""
        if len(x) != len(y):
            raise ValueError("both sides need the same number of rows")
        x, y = x.astype(np.float64), y.astype(np.float64)
        self.rows += len(x)
        self.x += x.sum(axis=0)
        self.y += y.sum(axis=0)
        self.xx += x.T @ x
        self.yy += y.T @ y
        self.yx += y.T @ x

    def merge(self, other: "CkaSums") -> None:
        """Add the sums of other rows."""
        self.rows += other.rows
        self.x += other.x
        self.y += other.y
        self.xx += other.xx
        self.yy += other.yy
        self.yx += other.yx

    @property
    def value(self) -> float | None:
        """CKA between 0 and 1; None with fewer than two rows or a constant side."""
        if self.rows < 2:
            return None
        first = np.linalg.norm(self.xx - np.outer(self.x, self.x) / self.rows)
        second = np.linalg.norm(self.yy - np.outer(self.y, self.y) / self.rows)
        shared = np.linalg.norm(self.yx - np.outer(self.y, self.x) / self.rows)
        return float(shared**2 / (first * second)) if first > 0 and second > 0 else None
