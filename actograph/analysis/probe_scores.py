"""Scores of held-out predictions, and their intervals over groups."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Vector = NDArray[np.float64]
BINS = 10


@dataclass(frozen=True)
class Bin:
    """Rows whose predicted probability lies in [low, high)."""

    low: float
    high: float
    rows: int
    predicted: float
    observed: float


@dataclass(frozen=True)
class Scores:
    """Scores on rows that the probe was not fitted on.

    `auroc` is the mean over folds; intervals are percentile bootstraps over groups at fixed probes.
    `calibration_error` is the expected calibration error over ten bins.
    """

    auroc: float
    auroc_interval: tuple[float, float]
    accuracy: float
    accuracy_interval: tuple[float, float]
    log_loss: float
    brier: float
    calibration_error: float
    calibration: tuple[Bin, ...]

    def as_json(self) -> dict[str, Any]:
        """JSON object of all fields."""
        return asdict(self)

    def brief(self) -> dict[str, Any]:
        """The four numbers that a baseline is quoted with."""
        names = ("auroc", "auroc_interval", "accuracy", "accuracy_interval")
        return {name: getattr(self, name) for name in names}


class _Ranked:
    """Rows of a fold in the order of their scores, so that each resample takes linear time."""

    def __init__(self, labels: Array, scores: Vector, rows: Array) -> None:
        order = np.argsort(scores[rows], kind="stable")
        self.rows = rows[order]
        self.labels = labels[self.rows].astype(np.float64)
        ranked = scores[self.rows]
        self.starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))

    def auroc(self, weights: Vector) -> float:
        """Area under the ROC curve, ties counting one half (Mann & Whitney 1947); NaN with one class."""
        ordered = weights[self.rows]
        positive = np.add.reduceat(ordered * self.labels, self.starts)
        negative = np.add.reduceat(ordered * (1 - self.labels), self.starts)
        pairs = positive.sum() * negative.sum()
        return float(positive @ (np.cumsum(negative) - negative / 2) / pairs) if pairs else float("nan")


def score(
    labels: Array,
    chances: Vector,
    fold_of: Array,
    of_group: Array,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Scores:
    """Score out-of-fold probabilities.

    Args:
        labels: 0 or 1, [n].
        chances: predicted probability of 1, [n].
        fold_of: fold of each row, [n].
        of_group: group number of each row, [n]; groups are drawn with replacement for the intervals.
    """
    ranked = [_Ranked(labels, chances, np.flatnonzero(fold_of == fold)) for fold in np.unique(fold_of)]
    right = ((chances >= 0.5) == (labels == 1)).astype(np.float64)
    generator, count = np.random.default_rng(seed), int(of_group.max()) + 1
    areas, accuracies = [], []
    for _ in range(resamples):
        weights = np.bincount(generator.integers(count, size=count), minlength=count)[of_group].astype(float)
        accuracies.append(float(weights @ right / weights.sum()))
        areas.append(_mean(one.auroc(weights) for one in ranked))
    kept = np.clip(chances, 1e-15, 1 - 1e-15)
    bins = _bins(labels, chances)
    return Scores(
        auroc=mean_auroc(labels, chances, fold_of),
        auroc_interval=interval(areas, level),
        accuracy=float(right.mean()),
        accuracy_interval=interval(accuracies, level),
        log_loss=float(-np.mean(labels * np.log(kept) + (1 - labels) * np.log1p(-kept))),
        brier=float(np.square(chances - labels).mean()),
        calibration_error=sum(one.rows * abs(one.predicted - one.observed) for one in bins) / len(labels),
        calibration=bins,
    )


def mean_auroc(labels: Array, chances: Vector, fold_of: Array) -> float:
    """Mean AUROC of the folds with both labels; NaN without such folds."""
    folds = (np.flatnonzero(fold_of == fold) for fold in np.unique(fold_of))
    return _mean(_Ranked(labels, chances, rows).auroc(np.ones(len(labels))) for rows in folds)


def _mean(values: Iterable[float]) -> float:
    known = [one for one in values if not np.isnan(one)]
    return float(np.mean(known)) if known else float("nan")


def interval(values: list[float], level: float) -> tuple[float, float]:
    """Quantiles that enclose a share of the values; NaN if all are."""
    if np.isnan(values).all():
        return float("nan"), float("nan")
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _bins(labels: Array, chances: Vector) -> tuple[Bin, ...]:
    places = np.minimum((chances * BINS).astype(np.int64), BINS - 1)
    return tuple(
        Bin(
            low=place / BINS,
            high=(place + 1) / BINS,
            rows=int((places == place).sum()),
            predicted=float(chances[places == place].mean()),
            observed=float(labels[places == place].mean()),
        )
        for place in np.unique(places).tolist()
    )
