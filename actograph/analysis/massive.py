"""Massive activations as in Sun et al. 2024 (https://arxiv.org/abs/2402.17762).

A value is massive if its magnitude is over 100 and at least 1,000 times the median magnitude of its layer.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: candidates that are kept per tensor; the largest magnitudes stay
KEPT = 1024
_BINS = 1 << 15


@dataclass(frozen=True, kw_only=True)
class MassiveActivation:
    """One massive value.

    Attributes:
        source: number of the session or sequence, in the order of the results.
        position: token of the row.
        value: with its sign.
        ratio: magnitude divided by the layer's median magnitude.
    """

    hook: str
    source: int
    position: int
    feature: int
    value: float
    ratio: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class MassiveCandidates:
    """Largest values of one tensor, and a histogram of its magnitudes.

    A bin of the histogram is one bfloat16 number, so the median is exact for bfloat16. For wider dtypes it is
    less than 0.8 % below the true one.
    """

    def __init__(self, magnitude: float = 100.0) -> None:
        self.magnitude = magnitude
        self.histogram = np.zeros(_BINS, np.int64)
        #: [kept, 4]: source, position, feature, value
        self.values = np.zeros((0, 4))
        self.dropped = 0

    def add(self, rows: NDArray[Any], source: int, positions: Sequence[int]) -> None:
        """Add rows [positions, width] of a sequence."""
        exact = np.ascontiguousarray(rows, np.float32)
        bins = (exact.view(np.uint32).ravel() & 0x7FFFFFFF) >> 16
        self.histogram += np.bincount(bins, minlength=_BINS)
        at, feature = np.nonzero(np.abs(exact) > self.magnitude)
        if at.size:
            tokens = np.asarray(positions)[at]
            found = np.stack([np.full(at.size, source), tokens, feature, exact[at, feature]], axis=1)
            self._keep(np.concatenate([self.values, found.astype(np.float64)]))

    def _keep(self, values: NDArray[np.float64]) -> None:
        # the order is complete, so the kept values do not depend on the order of the parts
        order = np.lexsort((values[:, 2], values[:, 1], values[:, 0], -np.abs(values[:, 3])))
        self.values = values[order[:KEPT]]
        self.dropped += max(0, len(values) - KEPT)

    @property
    def median(self) -> float:
        """Median magnitude of all values; nan without values."""
        counts = np.cumsum(self.histogram)
        if not counts[-1]:
            return float("nan")
        middle = [int(np.searchsorted(counts, rank + 1)) for rank in ((counts[-1] - 1) // 2, counts[-1] // 2)]
        return float((np.array(middle, np.uint32) << 16).view(np.float32).mean(dtype=np.float64))

    def found(self, hook: str, times_median: float, median: float | None = None) -> list[MassiveActivation]:
        """The massive values, the largest first. `median`: the exact median, if known."""
        middle = self.median if median is None else median
        return [
            MassiveActivation(
                hook=hook,
                source=int(source),
                position=int(position),
                feature=int(feature),
                value=float(value),
                ratio=float(abs(value) / middle) if middle else float("inf"),
            )
            for source, position, feature, value in self.values
            if abs(value) >= times_median * middle
        ]
