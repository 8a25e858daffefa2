"""Linear classifiers of a probe, with strength and calibration from held-out parts of the training rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from actograph.contract.errors import InvalidRequest

Array = NDArray[Any]
Vector = NDArray[np.float64]
Split = tuple[Array, Array]
ProbeKind = Literal["logistic", "ridge", "mean_difference"]
#: strengths that the inner validation tries; ridge has alpha = 1 / (2 C)
C_GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
#: folds of the training rows, for strength and calibration
INNER_FOLDS = 4


class MeanDifference(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The difference of the classes' means as direction, and the middle between them as threshold."""

    def fit(self, rows: Array, labels: Array) -> "MeanDifference":
        self.classes_ = np.array([0, 1])
        low, high = (rows[labels == one].mean(axis=0) for one in (0, 1))
        self.coef_ = (high - low)[None]
        self.intercept_ = -self.coef_ @ (low + high) / 2
        return self

    def decision_function(self, rows: Array) -> Array:
        return np.asarray(rows @ self.coef_[0] + self.intercept_[0])

    def predict(self, rows: Array) -> Array:
        return (self.decision_function(rows) >= 0).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A fitted classifier: the logit of class 1 is `slope * decision + offset`."""

    model: Any
    slope: float = 1.0
    offset: float = 0.0
    #: the strength that was chosen; None if it was given, or the classifier has none
    chosen_c: float | None = None

    def chances(self, rows: Array) -> Vector:
        """Probability of class 1 for each row, [n]."""
        return np.asarray(expit(self.slope * self.model.decision_function(rows) + self.offset))


def fit(kind: ProbeKind, rows: Array, labels: Array, groups: Array, *, c: float | None, seed: int) -> Fitted:
    """Fit a classifier.

    C is that with the lowest log loss on a held-out quarter of the groups (logistic), or on out-of-fold
    scores (ridge). Ridge and mean difference are calibrated on out-of-fold scores (Platt 1999): scores of
    the rows that a classifier was fitted on lie too far apart.

    Args:
        labels: 0 or 1, [n].
        groups: number of each row's group, [n].
        c: C of scikit-learn; None chooses it.

    Raises:
        InvalidRequest: a label has too few groups to hold some out.
    """
    chooses = c is None and kind != "mean_difference"
    strengths = C_GRID if chooses else (c or 1.0,)
    if kind == "logistic":
        best = _best_logistic(rows, labels, groups, seed) if chooses else strengths[0]
        return Fitted(model=classifier(kind, best).fit(rows, labels), chosen_c=best if chooses else None)
    splits = list(_inner_splits(labels, groups, seed))
    calibrated = []
    for strength in strengths:
        scores = cross_val_predict(
            classifier(kind, strength), rows, labels, cv=splits, method="decision_function"
        )
        slope, offset = platt(scores, labels)
        loss = log_loss(labels, expit(slope * scores + offset), labels=[0, 1])
        calibrated.append((loss, strength, slope, offset))
    _, best, slope, offset = min(calibrated)
    model = classifier(kind, best).fit(rows, labels)
    return Fitted(model=model, slope=slope, offset=offset, chosen_c=best if chooses else None)


def classifier(kind: ProbeKind, c: float) -> Pipeline:
    """An unfitted classifier of standardised rows."""
    last: Any = MeanDifference()
    if kind == "logistic":
        last = LogisticRegression(C=c, max_iter=2_000)
    elif kind == "ridge":
        last = RidgeClassifier(alpha=1 / (2 * c))
    return Pipeline([("scale", StandardScaler()), ("last", last)])


def platt(scores: Vector, labels: Array) -> tuple[float, float]:
    """Slope and offset of the logit over held-out scores, with the targets of Platt 1999, section 2.2.

    The slope is positive, so that the order of the scores stays.
    """
    positive = int(labels.sum())
    negative = len(labels) - positive
    likely = np.where(labels == 1, (positive + 1) / (positive + 2), 1 / (negative + 2))
    spread = float(scores.std()) or 1.0
    doubled = np.concatenate([scores, scores])[:, None] / spread
    targets = np.repeat([1, 0], len(scores))
    fitted = LogisticRegression(C=1e6, max_iter=2_000).fit(
        doubled, targets, sample_weight=np.concatenate([likely, 1 - likely])
    )
    slope, offset = float(fitted.coef_[0, 0]) / spread, float(fitted.intercept_[0])
    if slope > 0:
        return slope, offset
    return 1e-6 / spread, float(np.log(likely.sum() / (len(labels) - likely.sum())))


def _best_logistic(rows: Array, labels: Array, groups: Array, seed: int) -> float:
    train, held_out = next(_inner_splits(labels, groups, seed))
    losses = []
    for strength in C_GRID:
        model = classifier("logistic", strength).fit(rows[train], labels[train])
        chances = model.predict_proba(rows[held_out])[:, 1]
        losses.append(log_loss(labels[held_out], chances, labels=[0, 1]))
    return C_GRID[int(np.argmin(losses))]


def _inner_splits(labels: Array, groups: Array, seed: int) -> Iterator[Split]:
    """Training and held-out rows of each inner fold. Raises InvalidRequest for too few groups of a label."""
    least = min(len(np.unique(groups[labels == one])) for one in (0, 1))
    if least > 1:
        split = StratifiedGroupKFold(min(INNER_FOLDS, least), shuffle=True, random_state=seed)
        found = list(split.split(np.zeros(len(labels)), labels, groups))
        if all(len(np.unique(labels[train])) == 2 for train, _ in found):
            yield from found
            return
    raise InvalidRequest(
        f"a label has only {least} groups among the training rows of a fold, too few to hold some out for "
        "the choice of C or the calibration; add groups, choose more folds, or give c with the logistic probe"
    )
