"""When jobs will end: arithmetic on what is left, without a database.

Workers serve jobs of the most urgent priority first, and those of one priority in turns. Turns are
short beside jobs, so jobs of one priority are taken to share the workers evenly at every moment
(processor sharing, https://en.wikipedia.org/wiki/Processor_sharing).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

#: what weight each further unit leaves to those before it: about the last ten count
KEPT_WEIGHT = 0.9


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a job has left to do."""

    job_id: str
    priority: int
    #: time that one worker would take for it; infinite where unknown
    worker_seconds: float


def remaining(left: int, seconds_per_sample: float | None, in_hand: Sequence[tuple[int, float]]) -> float:
    """Worker-seconds that `left` samples still take.

    Args:
        left: samples that have not ended, those that are being run among them.
        seconds_per_sample: worker-seconds; None where nothing is known.
        in_hand: for each unit that is being run, its number of samples and for how long it has run. It
            is taken to be done no further than it should be by then.
    """
    if seconds_per_sample is None:
        return math.inf
    done = sum(min(elapsed, samples * seconds_per_sample) for samples, elapsed in in_hand)
    return max(0.0, left * seconds_per_sample - done)


def ends(work: Sequence[Work], workers: int) -> Mapping[str, float]:
    """Seconds from now until each job ends; jobs whose end cannot be told are left out.

    A job of unknown work never ends as far as this can tell: those beside it share with it, and those
    behind it have no known end.
    """
    found: dict[str, float] = {}
    if workers <= 0:
        return found
    clock = 0.0
    in_order = sorted(work, key=lambda one: (one.priority, one.worker_seconds))
    for _, siblings in groupby(in_order, key=lambda one: one.priority):
        sharing = list(siblings)
        done = 0.0  # what each of those that still run has had, in worker-seconds
        for place, one in enumerate(sharing):
            if math.isinf(one.worker_seconds):
                return found
            clock += (one.worker_seconds - done) * (len(sharing) - place) / workers
            done = one.worker_seconds
            found[one.job_id] = clock
    return found
