"""Probes of three kinds, fitted on standardised rows, with the strength chosen on held-out problems."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from actograph.analysis.probes import logistic
from actograph.analysis.probes.folded_rows import FoldedRows, Training

Vector = NDArray[np.float64]
ProbeKind = Literal["logistic", "ridge", "mean_difference"]
#: strengths that the inner validation tries, from the strongest penalty on
C_GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True)
class Fitted:
    """A probe in the standardised space of its training set; its scores are logits."""

    training: Training
    weights: Vector
    bias: float
    c: float | None

    def logits(self, fold: int) -> Vector:
        """Logits of another fold's rows."""
        return self.training.apply(fold, self.weights, self.bias)


def fit_tuned(rows: FoldedRows, folds: list[int], kind: ProbeKind, c: float | None) -> Fitted:
    """Fit on `folds`; without `c`, choose it by the log loss on the last of them first.

    The grid is followed from the strongest penalty until the loss rises. The probe is then fitted on all
    of `folds` with the chosen C. With a single training fold, C is 0.01.
    """
    if kind == "mean_difference":
        return _fit(Training(rows, folds), kind, None, None)
    start = None
    if c is None:
        c = 1e-2
        if len(folds) > 1:
            c, start = _choose(rows, folds, kind)
    return _fit(Training(rows, folds), kind, c, start)


def _choose(rows: FoldedRows, folds: list[int], kind: ProbeKind) -> tuple[float, Vector | None]:
    inner, held_out = Training(rows, folds[:-1]), folds[-1]
    a, b = rows.bounds[held_out]
    best, best_loss, best_start, start = C_GRID[0], np.inf, None, None
    for c in C_GRID:
        fitted = _fit(inner, kind, c, start)
        start = np.append(fitted.weights, fitted.bias)
        loss = float(logistic.log_losses(fitted.logits(held_out), rows.labels[a:b]).mean())
        if loss >= best_loss:
            break
        best, best_loss, best_start = c, loss, start
    return best, best_start


def _fit(training: Training, kind: ProbeKind, c: float | None, start: Vector | None) -> Fitted:
    if kind == "logistic":
        assert c is not None
        found = logistic.fit(training, c, start)
        return Fitted(training, found[:-1], float(found[-1]), c)
    if kind == "ridge":
        assert c is not None
        weights = _ridge(training, c)
    else:
        weights = training.difference
    slope, bias = _platt(training.project(weights), training.labels)
    return Fitted(training, weights * slope, bias, c)


def _ridge(training: Training, c: float) -> Vector:
    """Weights of least squares on labels -1 and 1 with penalty |w|^2 / (2 C).

    As scikit-learn's `RidgeClassifier(alpha=1 / (2 * C))` on the same standardised rows.
    """
    alpha = 1 / (2 * c)
    targets = 2 * training.labels - 1
    targets = targets - targets.mean()
    if training.count <= training.width:
        rows = training.standardised()
        kernel = rows @ rows.T
        kernel.flat[:: len(kernel) + 1] += alpha
        return np.asarray(rows.T @ np.linalg.solve(kernel, targets))
    system = training.correlation * training.count
    system.flat[:: training.width + 1] += alpha
    return np.asarray(np.linalg.solve(system, training.gather(targets)))


def _platt(scores: Vector, labels: Vector) -> tuple[float, float]:
    """Slope and bias that turn scores into logits (Platt 1999, with his smoothed targets)."""
    positive = labels.sum()
    negative = len(labels) - positive
    targets = np.where(labels == 1, (positive + 1) / (positive + 2), 1 / (negative + 2))
    spread = float(scores.std()) or 1.0
    centre = float(scores.mean())
    design = np.stack([(scores - centre) / spread, np.ones(len(scores))])
    found = np.zeros(2)
    loss = float(logistic.log_losses(found @ design, targets).sum())
    for _ in range(50):
        chances = logistic.sigmoid(found @ design)
        gradient = design @ (chances - targets)
        hessian = (design * (chances * (1 - chances))) @ design.T + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        length = 1.0
        while length > 1e-6:
            lower = float(logistic.log_losses((found - length * step) @ design, targets).sum())
            if lower <= loss:
                break
            length /= 2
        found, decrease, loss = found - length * step, loss - lower, lower
        if decrease <= 1e-12 * abs(loss):
            break
    slope = float(found[0]) / spread
    return slope, float(found[1]) - slope * centre
