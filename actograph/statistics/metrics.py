"""Means and standard errors of scores, under lm-eval's metric keys."""

import math
from collections.abc import Collection, Mapping, Sequence

from actograph.contract.resources import Score
from actograph.statistics.moments import Moments


def aggregate(
    scores: Sequence[Mapping[str, Score]], *, problems: Sequence[int] | None = None
) -> dict[str, float | None]:
    """Mean and standard error of each scorer's values.

    `scores` holds one mapping per sample, keyed `<metric>,<filter>`; all samples carry the same
    keys. Each gives two entries: `exact_match,strict-match` and
    `exact_match_stderr,strict-match`. The standard error is the sample standard deviation
    (n - 1) over sqrt(n), lm-eval's `mean_stderr`, and null below two values.

    `problems` names the dataset row of each sample. Where a job has several epochs, a problem's
    epochs are averaged first, so that repeated answers to one problem are not counted as
    independent evidence; with one epoch it changes nothing.

    Raises:
        ValueError: samples have different keys, or `problems` has another length.
    """
    if not scores:
        return {}
    check_scorers(scores)
    moments: dict[str, Moments] = {}
    for name in scores[0]:
        values = [sample[name].value for sample in scores]
        if problems is not None:
            values = _mean_per_problem(values, problems)
        moments[name] = Moments.of(values)
    return shown(moments)


def check_scorers(scores: Sequence[Collection[str]]) -> None:
    """Raises ValueError if samples have scores of different scorers."""
    names = set(scores[0])
    if any(set(sample) != names for sample in scores):
        raise ValueError("the samples were not scored by the same scorers")


def shown(moments: Mapping[str, Moments]) -> dict[str, float | None]:
    """Mean and standard error of each metric, keyed as lm-eval does."""
    metrics: dict[str, float | None] = {}
    for name, values in moments.items():
        metric, _, filter_name = name.partition(",")
        metrics[name] = values.mean
        metrics[f"{metric}_stderr,{filter_name}"] = values.stderr
    return metrics


def problem_mean(values: Sequence[float]) -> float:
    """The mean over the epochs of one problem."""
    return math.fsum(values) / len(values)


class Tally:
    """Mean, standard error and unparsed answers of one scorer, added up score by score."""

    def __init__(self) -> None:
        self.count = 0
        self.unparsed = 0
        self._sum = 0.0
        self._squares = 0.0

    def add(self, score: Score) -> None:
        self.count += 1
        self.unparsed += score.answer is None
        self._sum += score.value
        self._squares += score.value * score.value

    @property
    def mean(self) -> float | None:
        return self._sum / self.count if self.count else None

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean; values lie in [0, 1], so sums of squares are precise enough."""
        if self.count < 2:
            return None
        variance = max(0.0, self._squares - self._sum * self._sum / self.count) / (self.count - 1)
        return math.sqrt(variance / self.count)


def unparsed(scores: Sequence[Mapping[str, Score]]) -> dict[str, int]:
    """Number of samples without an answer for each scorer; a wrong answer is an answer."""
    counts: dict[str, int] = {}
    for sample in scores:
        for key, score in sample.items():
            counts[key] = counts.get(key, 0) + (score.answer is None)
    return counts


def _mean_per_problem(values: Sequence[float], problems: Sequence[int]) -> list[float]:
    by_problem: dict[int, list[float]] = {}
    for value, problem in zip(values, problems, strict=True):
        by_problem.setdefault(problem, []).append(value)
    return [problem_mean(group) for group in by_problem.values()]
