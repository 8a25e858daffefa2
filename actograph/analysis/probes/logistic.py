"""L2-penalised logistic regression for many rows, in numpy.

Minimises C * sum(log(1 + exp(-s * (w @ z + b)))) + |w|^2 / 2 with s = -1 or 1: the objective of
scikit-learn's `LogisticRegression(C=C)`, whose bias has no penalty either. The solver is L-BFGS
(Nocedal & Wright, Numerical Optimization, 2006, algorithm 7.4). Its initial matrix is the inverse of
the Hessian's upper bound C / 4 * Z'Z + 1 (Böhning 1992), so a fit takes about ten passes over the rows.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from actograph.analysis.probes.folded_rows import Training

Vector = NDArray[np.float64]
MAX_STEPS = 300
MEMORY = 10
#: of the objective, by which a step could still lower it
TOLERANCE = 1e-10


def sigmoid(values: Vector) -> Vector:
    """1 / (1 + exp(-x)) without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(values / 2)))


def log_losses(margins: Vector, labels: Vector) -> Vector:
    """Minus the log-likelihood of each label, nats: [n]."""
    return np.logaddexp(0, margins) - labels * margins


def fit(training: Training, c: float, start: Vector | None = None) -> Vector:
    """Fit weights of the standardised rows and the bias.

    Args:
        c: inverse strength of the penalty, as in scikit-learn.
        start: an earlier result to begin from.

    Returns:
        Weights and, last, the bias: [width + 1].
    """
    labels = training.labels
    point = np.zeros(training.width + 1) if start is None else start.copy()
    precondition = _preconditioner(training, c)
    margins = training.project(point[:-1]) + point[-1]
    gradient = _gradient(training, margins, labels, point, c)
    steps: list[tuple[Vector, Vector]] = []
    for _ in range(MAX_STEPS):
        objective = c * float(log_losses(margins, labels).sum()) + float(point[:-1] @ point[:-1]) / 2
        direction = -_two_loops(gradient, steps, precondition)
        slope = float(gradient @ direction)
        if -slope <= TOLERANCE * max(objective, 1e-30):
            break
        moved = training.project(direction[:-1]) + direction[-1]
        penalty = (float(point[:-1] @ direction[:-1]), float(direction[:-1] @ direction[:-1]))
        length = _line_search(margins, moved, labels, c, penalty)
        if length == 0:
            break
        point = point + length * direction
        margins = margins + length * moved
        after = _gradient(training, margins, labels, point, c)
        step, change = length * direction, after - gradient
        if step @ change > 0:
            steps = [*steps[1 - MEMORY :], (step, change)]
        gradient = after
    return point


def _gradient(training: Training, margins: Vector, labels: Vector, point: Vector, c: float) -> Vector:
    residuals = c * (sigmoid(margins) - labels)
    return np.append(training.gather(residuals) + point[:-1], residuals.sum())


def _preconditioner(training: Training, c: float) -> Callable[[Vector], Vector]:
    """Approximate the inverse Hessian; the identity for weights with fewer rows than features."""
    bias = 4 / (c * training.count)
    if training.count <= training.width:
        return lambda vector: np.append(vector[:-1], vector[-1] * bias)
    bound = training.correlation * (c * training.count / 4)
    bound.flat[:: training.width + 1] += 1
    inverse = np.linalg.inv(bound)
    return lambda vector: np.append(inverse @ vector[:-1], vector[-1] * bias)


def _two_loops(
    gradient: Vector, steps: list[tuple[Vector, Vector]], precondition: Callable[[Vector], Vector]
) -> Vector:
    """Product of the estimated inverse Hessian and the gradient."""
    found = gradient.copy()
    factors = []
    for step, change in reversed(steps):
        factor = float(step @ found) / float(step @ change)
        found -= factor * change
        factors.append(factor)
    found = precondition(found)
    if steps:
        step, change = steps[-1]
        found *= float(step @ change) / float(change @ precondition(change))
    for (step, change), factor in zip(steps, reversed(factors), strict=True):
        found += step * (factor - float(change @ found) / float(step @ change))
    return found


def _line_search(
    margins: Vector, moved: Vector, labels: Vector, c: float, penalty: tuple[float, float]
) -> float:
    """Length of the step that nearly minimises the convex objective: Newton's method with a bracket.

    Args:
        margins: of the rows now, [n]; they grow by `moved` for each unit of length.
        penalty: derivative of the penalty at length 0, and its second derivative.
    """
    linear, square = penalty
    slope = c * float((sigmoid(margins) - labels) @ moved) + linear
    low, high, length = 0.0, np.inf, 1.0
    for _ in range(20):
        chances = sigmoid(margins + length * moved)
        first = c * float((chances - labels) @ moved) + linear + length * square
        if abs(first) <= 0.1 * abs(slope):
            return length
        low, high = (length, high) if first < 0 else (low, length)
        second = c * float((chances * (1 - chances)) @ np.square(moved)) + square
        proposed = length - first / second if second > 0 else np.inf
        if not low < proposed < high:
            proposed = 2 * length if np.isinf(high) else (low + high) / 2
        length = min(proposed, 8 * length)
    return low
