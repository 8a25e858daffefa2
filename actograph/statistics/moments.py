"""Mean and standard error of values, summed without rounding."""

import math
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction


class Moments:
    """Collects values. The sums are exact, so the order of values does not matter."""

    def __init__(self, values: Iterable[float] = ()) -> None:
        #: value -> number of times; verdicts have two values
        self._times = Counter(values)

    def add(self, values: Iterable[float]) -> None:
        self._times.update(values)

    @property
    def mean(self) -> float | None:
        count = self._times.total()
        return float(self._sum(1)) / count if count else None

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean (n - 1); None for fewer than two values."""
        count = self._times.total()
        if count < 2:
            return None
        total = self._sum(1)
        variance = (self._sum(2) - total * total / count) / (count - 1)
        return math.sqrt(float(variance)) / math.sqrt(count)

    def _sum(self, power: int) -> Fraction:
        return sum((times * Fraction(value) ** power for value, times in self._times.items()), Fraction())
