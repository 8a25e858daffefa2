"""Scores of out-of-fold predictions, and their intervals over groups."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.analysis.probes.folds import Integers

Vector = NDArray[np.float64]


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
    """Scores of one probe on rows that it was not fitted on.

    `auroc` is the mean over the folds that hold both classes; the intervals are percentile bootstraps over
    groups at fixed probes. `calibration_error` is the expected calibration error over ten bins.
    """

    auroc: float | None
    auroc_interval: tuple[float, float] | None
    accuracy: float
    accuracy_interval: tuple[float, float]
    log_loss: float
    brier: float
    calibration_error: float
    calibration: tuple[Bin, ...]

    def as_json(self) -> dict[str, Any]:
        """JSON object of all fields."""
        return asdict(self)


@dataclass(frozen=True)
class Resampled:
    """Scores of the bootstrap's resamples."""

    aurocs: list[float]
    accuracies: list[float]


def auroc(labels: Vector, scores: Vector, weights: Vector | None = None) -> float | None:
    """Area under the ROC curve; ties count one half. None without rows of both classes.

    Equal to scikit-learn's `roc_auc_score`: Mann & Whitney 1947.

    Args:
        weights: non-negative weight of each row.
    """
    return _Ranked(labels, scores).auroc(np.ones(len(labels)) if weights is None else weights)


class _Ranked:
    """Rows sorted by score, so that each resample is linear in the rows."""

    def __init__(self, labels: Vector, scores: Vector) -> None:
        self.order = np.argsort(scores, kind="stable")
        ranked = scores[self.order]
        self.labels = labels[self.order]
        self.starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))

    def auroc(self, weights: Vector) -> float | None:
        ordered = weights[self.order]
        positive = np.add.reduceat(ordered * self.labels, self.starts)
        negative = np.add.reduceat(ordered * (1 - self.labels), self.starts)
        pairs = positive.sum() * negative.sum()
        if pairs == 0:
            return None
        return float(positive @ (np.cumsum(negative) - negative / 2) / pairs)


def score(
    labels: Vector,
    chances: Vector,
    fold_of: Integers,
    groups: Integers,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[Scores, Resampled]:
    """Score out-of-fold probabilities. Also returns the scores of the resamples.

    Args:
        labels: 0 or 1, [n].
        chances: predicted probability of 1, [n].
        fold_of: fold of each row, [n].
        groups: group number of each row, [n]: groups are drawn with replacement for the intervals.
    """
    drawn = resample(labels, chances, fold_of, groups, resamples=resamples, seed=seed)
    right = (chances >= 0.5) == (labels == 1)
    kept = np.clip(chances, 1e-15, 1 - 1e-15)
    bins = _bins(labels, chances)
    found = Scores(
        auroc=_mean_auroc(_ranked(labels, chances, fold_of), np.ones(len(labels))),
        auroc_interval=_interval(drawn.aurocs, level) if drawn.aurocs else None,
        accuracy=float(right.mean()),
        accuracy_interval=_interval(drawn.accuracies, level),
        log_loss=float(-np.mean(labels * np.log(kept) + (1 - labels) * np.log1p(-kept))),
        brier=float(np.square(chances - labels).mean()),
        calibration_error=sum(one.rows * abs(one.predicted - one.observed) for one in bins) / len(labels),
        calibration=bins,
    )
    return found, drawn


def resample(
    labels: Vector, chances: Vector, fold_of: Integers, groups: Integers, *, resamples: int, seed: int
) -> Resampled:
    """Draw groups with replacement, and score each draw; see `score`."""
    ranked = _ranked(labels, chances, fold_of)
    right = ((chances >= 0.5) == (labels == 1)).astype(np.float64)
    generator = np.random.default_rng(seed)
    count = int(groups.max()) + 1
    found = Resampled([], [])
    for _ in range(resamples):
        drawn = np.bincount(generator.integers(count, size=count), minlength=count)
        weights = drawn[groups].astype(np.float64)
        found.accuracies.append(float(weights @ right / weights.sum()))
        area = _mean_auroc(ranked, weights)
        if area is not None:
            found.aurocs.append(area)
    return found


def _ranked(labels: Vector, chances: Vector, fold_of: Integers) -> list[tuple[Integers, _Ranked]]:
    """Row numbers and ranks of each fold."""
    folds = [np.flatnonzero(fold_of == fold) for fold in np.unique(fold_of)]
    return [(rows, _Ranked(labels[rows], chances[rows])) for rows in folds]


def _mean_auroc(ranked: list[tuple[Integers, _Ranked]], weights: Vector) -> float | None:
    areas = [area for rows, one in ranked if (area := one.auroc(weights[rows])) is not None]
    return sum(areas) / len(areas) if areas else None


def _interval(values: list[float], level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _bins(labels: Vector, chances: Vector, count: int = 10) -> tuple[Bin, ...]:
    places = np.minimum((chances * count).astype(np.int64), count - 1)
    found = []
    for place in np.unique(places).tolist():
        inside = places == place
        found.append(
            Bin(
                low=place / count,
                high=(place + 1) / count,
                rows=int(inside.sum()),
                predicted=float(chances[inside].mean()),
                observed=float(labels[inside].mean()),
            )
        )
    return tuple(found)


def brief(scores: Scores) -> dict[str, Any]:
    """The four numbers that a baseline is quoted with."""
    return {
        "auroc": scores.auroc,
        "auroc_interval": scores.auroc_interval,
        "accuracy": scores.accuracy,
        "accuracy_interval": scores.accuracy_interval,
    }


def brief_of_runs(runs: list[tuple[Scores, Resampled]], level: float) -> dict[str, Any]:
    """Means over several runs, with intervals over the resamples of all of them."""
    areas = [area for _, drawn in runs for area in drawn.aurocs]
    means = [scores.auroc for scores, _ in runs if scores.auroc is not None]
    return {
        "auroc": sum(means) / len(means) if means else None,
        "auroc_interval": _interval(areas, level) if areas else None,
        "accuracy": sum(scores.accuracy for scores, _ in runs) / len(runs),
        "accuracy_interval": _interval([one for _, drawn in runs for one in drawn.accuracies], level),
    }
