"""What running out of memory has taught about how large a batch may be."""


class LearnedLimit:
    """A bound for later batches, from those that failed and those that went through.

    Batches are compared by the bytes that the plan takes them for, so that one number speaks of all
    shapes: what was learned with eight hooks and short prompts bounds a batch with sixteen hooks or
    long prompts, which takes more per sample, and lets one that takes less be larger.

    A batch at or above the smallest that ever failed is never chosen again, whatever went through
    later. Below it, as much is chosen as has gone through, or half of what failed, which is what was
    run in its place.
    """

    def __init__(self) -> None:
        self._failed: int | None = None  # the smallest need that was too much
        self._half = 0  # of that batch
        self._passed = 0  # the largest need below it which was not too much

    def failed(self, need: int, samples: int) -> None:
        """A batch of this need, in bytes, ran out of memory."""
        if self._failed is None or need < self._failed:
            self._failed = need
            self._half = min(need - 1, need // samples * ((samples + 1) // 2))
            if self._passed >= need:
                self._passed = 0

    def passed(self, need: int) -> None:
        """A batch of this need went through."""
        if self._failed is None or need < self._failed:
            self._passed = max(self._passed, need)

    def most_samples(self, need_of_one: int) -> int | None:
        """Samples of this need that a batch may have, at least 1; None where nothing is known."""
        if self._failed is None:
            return None
        return max(1, max(self._passed, self._half) // max(1, need_of_one))
