"""A time budget that a bench keeps by itself: each case has a share, and what would not fit is left out."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class TimeBudget:
    """Seconds of a whole bench, from its making on.

    Attributes:
        seconds: of everything.
        most: seconds of one case.
        left_out: name of each case that was not measured -> why.
    """

    seconds: float
    most: float
    clock: Callable[[], float] = time.monotonic
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def left(self) -> float:
        """Seconds until the end; 0 after it."""
        return max(0.0, self._began + self.seconds - self.clock())

    def share(self, name: str, cases: int, overhead: float) -> float | None:
        """Seconds to measure a case; None if it is left out, which is noted.

        Args:
            cases: cases that are still to come, this one included.
            overhead: seconds that a case takes beside its measurement, of which there are as many.
        """
        share = min(self.most, self.left / cases - overhead)
        # the last cases are left out rather than all measured too briefly
        least = self.most / 4
        if share >= least:
            return share
        if self.left >= least + overhead:
            return least
        self.left_out[name] = f"{self.left:.1f} s were left, and it takes {least + overhead:.1f} s"
        return None
