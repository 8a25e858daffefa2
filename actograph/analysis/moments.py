"""Mean, variance, kurtosis and maximum of all values of a tensor, in one pass.

Central moments are merged as in Pébay 2008 (https://doi.org/10.2172/1028931), so the order of the parts
changes only the rounding.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Moments:
    """Central moments of all values that were added, in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.m2 = self.m3 = self.m4 = 0.0
        self.largest = 0.0

    def add(self, values: NDArray[Any]) -> None:
        """Add the values of an array of any shape."""
        if values.size:
            part, flat = Moments(), values.astype(np.float64).ravel()
            part.count, part.mean = flat.size, float(flat.mean())
            part.largest = float(np.abs(flat).max())
            flat -= part.mean
            squares = flat * flat
            part.m2, part.m3 = float(squares.sum()), float((squares * flat).sum())
            part.m4 = float((squares * squares).sum())
            self.merge(part)

    def merge(self, other: "Moments") -> None:
        """Add the values of `other`."""
        a, b = self.count, other.count
        if not b:
            return
        n, d = a + b, other.mean - self.mean
        m2 = self.m2 + other.m2 + d**2 * a * b / n
        m3 = self.m3 + other.m3 + d**3 * a * b * (a - b) / n**2 + 3 * d * (a * other.m2 - b * self.m2) / n
        self.m4 += (
            other.m4
            + d**4 * a * b * (a * a - a * b + b * b) / n**3
            + 6 * d**2 * (a * a * other.m2 + b * b * self.m2) / n**2
            + 4 * d * (a * other.m3 - b * self.m3) / n
        )
        self.count, self.mean, self.m2, self.m3 = n, self.mean + d * b / n, m2, m3
        self.largest = max(self.largest, other.largest)

    @property
    def variance(self) -> float:
        """Population variance."""
        return self.m2 / self.count if self.count else float("nan")

    @property
    def kurtosis(self) -> float:
        """Pearson's kurtosis, which is 3 for a normal distribution; nan for constant values."""
        return self.count * self.m4 / self.m2**2 if self.m2 else float("nan")
