"""Colours of numbers, as `static/colours.js` gives them, for outputs that are seen without scripts.

A test holds both against each other.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

#: cividis: dark blue to yellow
_ONE_SIDED = (
    (0, 34, 78), (53, 69, 108), (102, 105, 112), (148, 142, 119), (200, 184, 102), (254, 232, 56),
)  # fmt: skip
#: blue for negative numbers, orange for positive ones
_SIGNED = ((5, 77, 150), (92, 158, 212), (247, 247, 247), (245, 163, 74), (166, 76, 2))
_STEPS = 256


@dataclass(frozen=True, kw_only=True)
class ScaleKind:
    """A kind of scale.

    Attributes:
        signed: with zero in its middle.
        log: logarithmic, of positive numbers.
        sparse: zeros do not count for its limits.
    """

    signed: bool = False
    log: bool = False
    sparse: bool = False


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A scale of colours from `low` to `high`; numbers beyond have the colours of its ends."""

    low: float
    high: float
    kind: ScaleKind

    @classmethod
    def of(cls, numbers: NDArray[np.float32], kind: ScaleKind) -> "Scale":
        """The scale between the 1st and the 99th percentile of finite numbers."""
        found = numbers[np.isfinite(numbers)]
        if kind.log:
            found = found[found > 0]
        if kind.sparse:
            found = found[found != 0]
        ordered = np.sort(np.abs(found) if kind.signed else found)
        high = float(ordered[_rounded((len(ordered) - 1) * 0.99)]) if len(ordered) else 1.0
        if kind.signed:
            return cls(low=-(high or 1.0), high=high or 1.0, kind=kind)
        least = 0.1 if kind.log else 0.0
        low = float(ordered[_rounded((len(ordered) - 1) * 0.01)]) if len(ordered) else least
        return cls(low=low, high=high if high > low else low + 1, kind=kind)

    def colour(self, number: float) -> tuple[str, str] | None:
        """The colour of a number and of the ink on it, in CSS; None for a missing number."""
        if math.isnan(number):
            return None
        if self.kind.log:
            value = math.log(number) if number > 0 else -math.inf
            low, high = math.log(self.low), math.log(self.high)
        else:
            value, low, high = number, self.low, self.high
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        return _ramp(_SIGNED if self.kind.signed else _ONE_SIDED)[_rounded(share * (_STEPS - 1))]

    @property
    def gradient(self) -> str:
        """The scale as a CSS gradient."""
        colours = _ramp(_SIGNED if self.kind.signed else _ONE_SIDED)[::17]
        return f"linear-gradient(to right, {', '.join(css for css, _ in colours)})"


def _rounded(number: float) -> int:
    """As JavaScript rounds."""
    return math.floor(number + 0.5)


@cache
def _ramp(stops: tuple[tuple[int, int, int], ...]) -> list[tuple[str, str]]:
    found = []
    for step in range(_STEPS):
        at = step / (_STEPS - 1) * (len(stops) - 1)
        low = min(math.floor(at), len(stops) - 2)
        pairs = zip(stops[low], stops[low + 1], strict=True)
        mixed = [_rounded(one + (other - one) * (at - low)) for one, other in pairs]
        red, green, blue = ((value / 255) ** 2.2 for value in mixed)
        is_light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179
        found.append((f"rgb({', '.join(map(str, mixed))})", "#000" if is_light else "#fff"))
    return found
