"""Metrics over several answers to each problem: pass@k and the majority vote.

pass@k is the chance that one of k answers, drawn without replacement from the n that a problem has,
is right: 1 - C(n - c, k) / C(n, k) if c are right. It is the unbiased estimator of Chen et al.
2021, arXiv 2107.03374, equation 1. maj@n is self-consistency (Wang et al. 2022, arXiv 2203.11171):
the answer that most epochs gave is the problem's.

Keys are lm-eval's, `<metric>,<filter>`: its code tasks report `pass@1,<filter>`, its
self-consistency tasks vote as `maj@n`.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import comb

from actograph.contract.resources import Score
from actograph.statistics.moments import Moments

#: metrics with the values 0 and 1 only
_VERDICTS = ("exact_match", "includes")
#: metrics with answers to vote on; `includes` finds the target or nothing
_VOTES = ("exact_match",)


@lru_cache(maxsize=1 << 16)
def pass_at_k(answers: int, right: int, k: int) -> float:
    """The probability that one of `k` answers is right, if `right` of all `answers` are.

    Raises:
        ValueError: there are fewer answers than `k`, or `right` is out of range.
    """
    if not (1 <= k <= answers and 0 <= right <= answers):
        raise ValueError(f"pass@{k} of {answers} answers, {right} of them right, means nothing")
    # integers without end divide into the nearest float
    return 1.0 - comb(answers - right, k) / comb(answers, k)


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


def add_problem(moments: dict[str, Moments], key: str, answers: Sequence[Score], epochs: int) -> None:
    """Add pass@k and maj@n of one problem and one scorer, if the scorer judges right or wrong.

    A problem counts for pass@k once k epochs are completed, and for maj@n once all are, so that values of a
    running job can be compared.

    Args:
        moments: metrics, keyed `<metric>,<filter>`.
        key: the scorer.
        answers: its score of each completed epoch, in order.
        epochs: epochs of the job.
    """
    metric, _, filter_name = key.partition(",")
    if metric not in _VERDICTS:
        return
    # `includes,none` and `exact_match,none` may stand beside each other
    prefix = "" if metric == "exact_match" else f"{metric}_"
    right = sum(answer.value == 1.0 for answer in answers)
    for k in ks(epochs):
        values = moments.setdefault(f"{prefix}pass@{k},{filter_name}", Moments())
        if len(answers) >= k:
            values.add([pass_at_k(len(answers), right, k)])
    if metric in _VOTES:
        values = moments.setdefault(f"{prefix}maj@{epochs},{filter_name}", Moments())
        if len(answers) == epochs:
            values.add([majority(answers)])
