"""Metrics of an evaluation under lm-eval's keys, `<metric>,<filter>`, with standard errors.

With several epochs: pass@k is the chance that one of k answers, drawn without replacement from the n of a
problem, is right: 1 - C(n - c, k) / C(n, k) if c are right (Chen et al. 2021, arXiv 2107.03374, equation 1).
maj@n is the verdict on the most frequent answer (Wang et al. 2022, arXiv 2203.11171).
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

from actograph.contract.resources import Score

#: metrics with the values 0 and 1 only; `includes` finds the target or nothing, so it has no vote
_VERDICTS = ("exact_match", "includes")
#: standard errors on each side of a mean that hold 95 % of a normal distribution
_Z = 1.96


#: metric -> its values, one for each problem
Values = dict[str, list[float]]


def shown(values: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """Mean and standard error (n - 1) of each metric, keyed as lm-eval does.

    None for a mean of no values and an error of fewer than two. The order of values does not matter.
    """
    metrics: dict[str, float | None] = {}
    for name, found in values.items():
        metric, comma, filter_name = name.partition(",")
        several = len(found) > 1
        metrics[name] = fmean(found) if found else None
        metrics[f"{metric}_stderr{comma}{filter_name}"] = _standard_error(found) if several else None
    return metrics


def intervals(values: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    """95 % interval of each metric's mean; metrics of too few values have none."""
    found = {name: interval(of) for name, of in values.items()}
    return {name: bounds for name, bounds in found.items() if bounds is not None}


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of a mean: Wilson's for values from 0 to 1, else the mean and 1.96 standard errors.

    Wilson's stays between 0 and 1, and has a width where all values are equal (Wilson, J. Am. Stat. Assoc. 22
    (1927) 209-212). Values between 0 and 1 vary less than verdicts of the same mean, so they count as more:
    p (1 - p) / error^2 (Dean & Pagano, Stat. Methods Med. Res. 24 (2015) 823-839, for clustered samples).

    Returns None for fewer than two values other than verdicts, and for none.
    """
    count = len(values)
    is_verdict = all(one in (0.0, 1.0) for one in values)
    if not count or (count < 2 and not is_verdict):
        return None
    mean = fmean(values)
    error = 0.0 if count < 2 else _standard_error(values)
    if min(values) < 0 or max(values) > 1:
        return mean - _Z * error, mean + _Z * error
    size = count if is_verdict or not error else max(count, mean * (1 - mean) / error**2)
    centre = (mean + _Z**2 / (2 * size)) / (1 + _Z**2 / size)
    half = _Z / (1 + _Z**2 / size) * math.sqrt(mean * (1 - mean) / size + (_Z / (2 * size)) ** 2)
    return max(0.0, centre - half), min(1.0, centre + half)


def _standard_error(found: Sequence[float]) -> float:
    # `statistics.stdev` computes with fractions, and takes ten times as long
    mean = fmean(found)
    squares = math.fsum((one - mean) ** 2 for one in found)
    return math.sqrt(squares / (len(found) - 1) / len(found))


def check_scorers(scores: Sequence[Collection[str]]) -> None:
    """Raises ValueError if samples have scores of different scorers."""
    first = set(scores[0])
    if any(set(sample) != first for sample in scores[1:]):
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


def add_problem(values: Values, scores: Sequence[Mapping[str, Score]], epochs: int) -> None:
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
        # the powers of two below the number of epochs, and that number
        for k in sorted({*(1 << power for power in range(epochs.bit_length())), epochs}):
            of_k = values.setdefault(f"{prefix}pass@{k},{filter_name}", [])
            if len(answers) >= k:
                of_k.append(pass_at_k(len(answers), right, k))
        if metric == "exact_match":
            votes = values.setdefault(f"maj@{epochs},{filter_name}", [])
            if len(answers) == epochs:
                votes.append(majority(answers))
