"""Means and standard errors of scores, under lm-eval's metric keys."""

import math
from collections.abc import Mapping, Sequence

from actograph.contract.resources import Score
from actograph.statistics.moments import Moments


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
        self.moments = Moments()
        self.count = self.unparsed = 0

    def add(self, score: Score) -> None:
        self.moments.add([score.value])
        self.count += 1
        self.unparsed += score.answer is None
