"""Statistics of paired measurements: the same problems under two conditions.

numpy alone, so that the API and a client can both use it.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DEFAULT_RESAMPLES = 2000
DEFAULT_LEVEL = 0.95
#: indices held at once, which bounds the memory however many problems there are
_DRAWN_AT_ONCE = 1 << 20

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of a confidence interval."""

    low: float
    high: float


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value of McNemar's test.

    Under the null hypothesis a discordant pair falls on either side with probability 1/2, so the
    smaller count is binomial(n, 1/2); the p-value is twice its lower tail, at most 1, as in
    statsmodels' `mcnemar(exact=True)`. Without discordant pairs it is 1.

    Source: McNemar, Psychometrika 12 (1947) 153-157; exact form: Edwards (1948).

    Args:
        only_first: pairs in which the first measurement alone is right.
        only_second: pairs in which the second alone is right.
    """
    total, fewer = only_first + only_second, min(only_first, only_second)
    # in whole numbers: 2**-total is no float beyond about a thousand pairs
    tail = term = 1
    for k in range(fewer):
        term = term * (total - k) // (k + 1)
        tail += term
    p_value: float = 2 * tail / 2**total
    return min(1.0, p_value)


def per_problem(differences: Sequence[float], problems: Sequence[Hashable]) -> Floats:
    """Mean difference of each problem: repeated runs of one problem are not independent."""
    groups: dict[Hashable, list[float]] = {}
    for difference, problem in zip(differences, problems, strict=True):
        groups.setdefault(problem, []).append(difference)
    return np.array([math.fsum(group) / len(group) for group in groups.values()], dtype=np.float64)


def bootstrap_interval(
    differences: Sequence[float] | Floats,
    *,
    level: float = DEFAULT_LEVEL,
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Percentile bootstrap interval of the mean, problems drawn with replacement.

    The same number of problems and the same seed give the same resamples, so that intervals of one
    comparison rest on the same draws. None for fewer than two problems.

    Source: Efron & Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.

    Args:
        differences: one number per problem, second condition minus first.
        level: coverage, strictly between 0 and 1.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 2:
        return None
    generator = np.random.default_rng(seed)
    means = np.empty(resamples)
    at_once = max(1, _DRAWN_AT_ONCE // len(values))
    for start in range(0, resamples, at_once):
        stop = min(start + at_once, resamples)
        drawn = generator.integers(len(values), size=(stop - start, len(values)))
        means[start:stop] = values[drawn].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))
