"""Metrics of an evaluation under lm-eval's keys, `<metric>,<filter>`, with standard errors.

With several epochs: pass@k is the chance that one of k answers, drawn without replacement from the n of a
problem, is right: 1 - C(n - c, k) / C(n, k) if c are right (Chen et al. 2021, arXiv 2107.03374, equation 1).
maj@n is the verdict on the most frequent answer (Wang et al. 2022, arXiv 2203.11171).
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction

from actograph.contract.resources import Score

#: metrics with the values 0 and 1 only; `includes` finds the target or nothing, so it has no vote
_VERDICTS = ("exact_match", "includes")


class Moments:
    """Mean and standard error of values. The sums are exact, so the order of values does not matter."""

    def __init__(self, values: Iterable[float] = ()) -> None:
        #: value -> number of times; verdicts have two values
        self._times = Counter(values)

    def add(self, value: float) -> None:
        self._times[value] += 1

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


def shown(moments: Mapping[str, Moments]) -> dict[str, float | None]:
    """Mean and standard error of each metric, keyed as lm-eval does."""
    metrics: dict[str, float | None] = {}
    for name, values in moments.items():
        metric, _, filter_name = name.partition(",")
        metrics[name] = values.mean
        metrics[f"{metric}_stderr,{filter_name}"] = values.stderr
    return metrics


def check_scorers(scores: Sequence[Collection[str]]) -> None:
    """Raises ValueError if samples have scores of different scorers."""
    if any(set(sample) != set(scores[0]) for sample in scores):
        raise ValueError("the samples were not scored by the same scorers")


def pass_at_k(answers: int, right: int, k: int) -> float:
    """The probability that one of `k` answers is right, if `right` of all `answers` are."""
    return 1.0 - math.comb(answers - right, k) / math.comb(answers, k)


def majority(scores: Sequence[Score]) -> float:
    """The verdict on the most frequent answer; the earliest one wins a tie.

    Epochs without an answer have no vote. Without any vote the verdict is 0.
    """
    votes = Counter(score.answer for score in scores if score.answer is not None)
    if not votes:
        return 0.0
    # most_common keeps the order in which answers came in
    winner = votes.most_common(1)[0][0]
    return next(score.value for score in scores if score.answer == winner)


def ks(epochs: int) -> list[int]:
    """The powers of two below the number of epochs, and that number."""
    return sorted({*(1 << power for power in range(epochs.bit_length())), epochs})


def add_problem(moments: dict[str, Moments], scores: Sequence[Mapping[str, Score]], epochs: int) -> None:
    """Add pass@k and maj@n of one problem, for each scorer that judges right or wrong.

    A problem counts for pass@k once k epochs are completed, and for maj@n once all are, so that values of a
    running job can be compared.

    Args:
        scores: one mapping per completed epoch, in order.
        epochs: epochs of the job.
    """
    for key in scores[0]:
        metric, _, filter_name = key.partition(",")
        if metric not in _VERDICTS:
            continue
        # `includes,none` and `exact_match,none` may stand beside each other
        prefix = "" if metric == "exact_match" else f"{metric}_"
        answers = [sample[key] for sample in scores]
        right = sum(answer.value == 1.0 for answer in answers)
        for k in ks(epochs):
            values = moments.setdefault(f"{prefix}pass@{k},{filter_name}", Moments())
            if len(answers) >= k:
                values.add(pass_at_k(len(answers), right, k))
        if metric == "exact_match":
            values = moments.setdefault(f"maj@{epochs},{filter_name}", Moments())
            if len(answers) == epochs:
                values.add(majority(answers))
