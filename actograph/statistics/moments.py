"""Mean and standard error of values, summed without rounding."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(slots=True)
class Moments:
    """Number, sum and sum of squares. The sums are exact, so that the order of values does not matter."""

    count: int = 0
    total: Fraction = Fraction(0)
    squares: Fraction = Fraction(0)

    @classmethod
    def of(cls, values: Iterable[float]) -> "Moments":
        moments = cls()
        moments.add(values)
        return moments

    @classmethod
    def from_stored(cls, stored: tuple[int, str, str]) -> "Moments":
        return cls(stored[0], Fraction(stored[1]), Fraction(stored[2]))

    def as_stored(self) -> tuple[int, str, str]:
        return self.count, str(self.total), str(self.squares)

    def add(self, values: Iterable[float]) -> None:
        for value, times in Counter(values).items():
            exact = Fraction(value)
            self.count += times
            self.total += times * exact
            self.squares += times * exact * exact

    @property
    def mean(self) -> float | None:
        return float(self.total) / self.count if self.count else None

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean (n - 1); None for fewer than two values."""
        if self.count < 2:
            return None
        variance = (self.squares - self.total * self.total / self.count) / (self.count - 1)
        return math.sqrt(float(variance)) / math.sqrt(self.count)
