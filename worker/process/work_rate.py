"""The engine's work between two heartbeats."""

import time
from collections.abc import Callable, Mapping

#: counts of an engine since it loaded its model, see `EngineWork`
COUNTS = ("computed_tokens", "generated_tokens", "pass_milliseconds")


class WorkRate:
    """Turns an engine's counts into those of the time since the last call.

    An engine tells its counts once a second at most, so the shares of single windows are rough.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self._counts = dict.fromkeys(COUNTS, 0)

    def numbers(self, told: Mapping[str, int]) -> dict[str, int]:
        """`told` with `window_...` counts in place of the whole ones, and `window_milliseconds`."""
        moment, counts = self._clock(), {name: told.get(name, 0) for name in COUNTS}
        found = {name: value for name, value in told.items() if name not in COUNTS}
        for name, value in counts.items():
            before = self._counts[name]
            # an engine that was started again counts from 0
            found[f"window_{name}"] = value - before if value >= before else value
        found["window_milliseconds"] = round(1000 * (moment - self._at))
        self._at, self._counts = moment, counts
        return found
