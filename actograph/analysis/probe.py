"""Linear probes, cross-validated over groups, beside their baselines. On scikit-learn.

    result = probe(features, labels, groups=problems, lengths=answer_tokens)
    result.auroc, result.auroc_interval, result.baselines["length"]["auroc"]

Nothing of a held-out row is used to fit: standardisation, C and calibration are those of the training rows.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, make_scorer
from sklearn.model_selection import GridSearchCV, GroupShuffleSplit, StratifiedGroupKFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from actograph.analysis.probe_scores import Scores, score
from actograph.contract.errors import InvalidRequest

#: of few groups, those held out may all have one label
_LIKELIHOOD = make_scorer(log_loss, greater_is_better=False, response_method="predict_proba", labels=[0, 1])

Array = NDArray[Any]
Vector = NDArray[np.float64]
ProbeKind = Literal["logistic", "ridge", "mean_difference"]
#: strengths that the inner validation tries; ridge has alpha = 1 / (2 C)
C_GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
#: words of the bag-of-words baseline
WORDS = 5_000
#: words of any length, numbers and signs
_WORD = r"\w+|[^\w\s]"


class _Projection(BaseEstimator, TransformerMixin):  # type: ignore[misc]
    """Rows projected on one direction: that of ridge regression, or the difference of the classes' means."""

    def __init__(self, kind: ProbeKind = "ridge", C: float = 1.0) -> None:  # noqa: N803 (scikit-learn's name)
        self.kind = kind
        self.C = C

    def fit(self, rows: Array, labels: Array) -> "_Projection":
        if self.kind == "ridge":
            self.direction_ = Ridge(alpha=1 / (2 * self.C)).fit(rows, 2.0 * labels - 1).coef_
        else:
            self.direction_ = rows[labels == 1].mean(axis=0) - rows[labels == 0].mean(axis=0)
        return self

    def transform(self, rows: Array) -> Array:
        return np.asarray(rows @ self.direction_)[:, None]


@dataclass(frozen=True, kw_only=True)
class Direction:
    """A probe fitted on all rows: the logit of the positive class is `features @ weights + bias`."""

    weights: Vector
    bias: float

    def chances(self, features: Array) -> Vector:
        """Probability of the positive class for each row, [n]."""
        logits = features.astype(np.float64) @ self.weights + self.bias
        return np.asarray(0.5 * (1 + np.tanh(0.5 * logits)))


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Scores of a probe on held-out rows, its baselines, and its direction."""

    scores: Scores
    #: name -> auroc, auroc_interval, accuracy, accuracy_interval
    baselines: dict[str, dict[str, Any]]
    kind: ProbeKind
    rows: int
    groups: int
    width: int
    #: the two labels, the positive one last
    classes: tuple[Any, Any]
    positive_rows: int
    #: C of each fold; empty for the difference of means
    chosen_c: tuple[float, ...]
    direction: Direction
    #: out-of-fold probability of the positive class, [n]
    chances: Vector = field(repr=False)
    #: fold of each row, [n]
    fold_of: Array = field(repr=False)

    @property
    def auroc(self) -> float:
        return self.scores.auroc

    @property
    def auroc_interval(self) -> tuple[float, float]:
        return self.scores.auroc_interval

    @property
    def accuracy(self) -> float:
        return self.scores.accuracy

    def as_json(self) -> dict[str, Any]:
        """JSON object of everything but the arrays."""
        names = ("kind", "rows", "groups", "width", "positive_rows")
        return {
            **self.scores.as_json(),
            "baselines": self.baselines,
            **{name: getattr(self, name) for name in names},
            "classes": list(self.classes),
            "c": list(self.chosen_c),
        }

    def transfer(
        self, features: Array, labels: Array | Sequence[Any], groups: Sequence[Hashable] | Array | None = None
    ) -> Scores:
        """Score the direction on rows of another job, which it was not fitted on.

        Args:
            features: [m, width] of the same hook.
            labels: values of the probe's two classes, [m].

        Raises:
            InvalidRequest: the width differs, or a label is of neither class.
        """
        features, values = _matrix(features, "features"), np.asarray(labels)
        if features.shape[1] != self.width:
            raise InvalidRequest(f"the probe has width {self.width}, the features have {features.shape[1]}")
        _same_length(values, len(features), "labels")
        if not np.isin(values, self.classes).all():
            raise InvalidRequest(f"labels must be {self.classes[0]!r} or {self.classes[1]!r}")
        numbers = (values == self.classes[1]).astype(np.int64)
        of_group = _group_numbers(features, groups)
        return score(numbers, self.direction.chances(features), np.zeros(len(numbers), int), of_group)


def probe(
    features: Array,
    labels: Array | Sequence[Any],
    groups: Array | Sequence[Hashable] | None = None,
    *,
    kind: ProbeKind = "logistic",
    folds: int = 5,
    c: float | None = None,
    seed: int = 0,
    resamples: int = 1000,
    level: float = 0.95,
    lengths: Array | None = None,
    texts: Sequence[str] | None = None,
    others: Mapping[str, Array] | None = None,
) -> ProbeResult:
    """Fit and score a linear probe by cross-validation over groups.

    Args:
        features: [n, width].
        labels: two different values, [n]; the larger one is the positive class.
        groups: rows of one group, such as a problem, stay on one side of every split, [n]. Default: equal
            rows are a group.
        kind: logistic regression, ridge regression, or the difference of means; the last two are calibrated
            by a logistic regression on their projection (Platt 1999).
        c: scikit-learn's C (ridge: alpha = 1 / (2 C)); None chooses it per fold by the log loss on a quarter
            of the training groups.
        resamples: resamples of the bootstrap over groups, at fixed probes.
        lengths: a number per row, such as tokens of the answer, [n]: the baseline `length`.
        texts: a text per row: the baseline `bag_of_words`.
        others: further features [n, any width] as baselines, such as `layer_0`.

    Raises:
        InvalidRequest: the arrays do not fit together, or there are fewer than two classes, or a class has
            fewer groups than there are folds.
    """
    if kind not in get_args(ProbeKind):
        raise InvalidRequest(f"unknown probe {kind!r}; one of: {', '.join(get_args(ProbeKind))}")
    if c is not None and not (np.isfinite(c) and c > 0):
        raise InvalidRequest(f"c is {c}; it must be a positive number")
    features = _matrix(features, "features")
    classes, numbers = two_classes(labels, len(features))
    of_group = _group_numbers(features, groups)
    fold_of = _folds(numbers, of_group, folds, seed)
    splits = _Splits(of_group=of_group, fold_of=fold_of, resamples=resamples, level=level, seed=seed)
    chances, chosen = splits.out_of_fold(features, numbers, _model(kind, c), _grid(kind, c))
    fixed = _model(kind, float(np.median(chosen)) if chosen else c)
    shuffled = np.random.default_rng(seed).permutation(numbers)
    baselines = {
        "majority": splits.score(numbers, splits.shares(numbers)).brief(),
        **_further_baselines(splits, numbers, c, lengths=lengths, texts=texts, others=others or {}),
        "shuffled_labels": splits.score(shuffled, splits.out_of_fold(features, shuffled, fixed)[0]).brief(),
    }
    return ProbeResult(
        scores=splits.score(numbers, chances), baselines=baselines, kind=kind, rows=len(features),
        groups=int(of_group.max()) + 1, width=features.shape[1], classes=classes,
        positive_rows=int(numbers.sum()), chosen_c=chosen, direction=_direction(fixed.fit(features, numbers)),
        chances=chances, fold_of=fold_of,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Splits:
    """The folds that a probe and its baselines share."""

    of_group: Array
    fold_of: Array
    resamples: int
    level: float
    seed: int

    def out_of_fold(
        self, rows: Array, targets: Array, model: Pipeline, grid: dict[str, list[float]] | None = None
    ) -> tuple[Vector, tuple[float, ...]]:
        """Probability of the positive class for each row, by the probe of the other folds; each fold's C."""
        chances, chosen = np.empty(len(targets)), []
        for fold in range(int(self.fold_of.max()) + 1):
            train = self.fold_of != fold
            fitted: Any = clone(model)
            if grid is None:
                fitted.fit(rows[train], targets[train])
            else:
                inner = GroupShuffleSplit(n_splits=1, test_size=0.25, random_state=self.seed)
                fitted = GridSearchCV(fitted, grid, cv=inner, scoring=_LIKELIHOOD, error_score="raise")
                fitted.fit(rows[train], targets[train], groups=self.of_group[train])
                chosen += fitted.best_params_.values()
            chances[~train] = fitted.predict_proba(rows[~train])[:, 1]
        return chances, tuple(chosen)

    def shares(self, targets: Array) -> Vector:
        """For each held-out row the share of positive rows among the training rows."""
        chances = np.empty(len(targets))
        for fold in np.unique(self.fold_of):
            chances[self.fold_of == fold] = targets[self.fold_of != fold].mean()
        return chances

    def score(self, targets: Array, chances: Vector) -> Scores:
        options: dict[str, Any] = {"resamples": self.resamples, "level": self.level, "seed": self.seed}
        return score(targets, chances, self.fold_of, self.of_group, **options)


def two_classes(labels: Array | Sequence[Any], rows: int) -> tuple[tuple[Any, Any], Array]:
    """Return the two labels and the number of each row's class, 0 or 1.

    Raises:
        InvalidRequest: there are not exactly two different labels, or one is NaN.
    """
    values = np.asarray(labels)
    _same_length(values, rows, "labels")
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise InvalidRequest("a label is NaN; leave out rows without a label")
    found = np.unique(values)
    if len(found) != 2:
        shown = ", ".join(map(str, found[:5].tolist())) + (", ..." if len(found) > 5 else "")
        raise InvalidRequest(f"labels must have two different values; found {len(found)}: {shown}")
    return (found[0].item(), found[1].item()), (values == found[1]).astype(np.int64)


def _logistic(c: float) -> LogisticRegression:
    return LogisticRegression(C=c, max_iter=2_000)


def _model(kind: ProbeKind, c: float | None) -> Pipeline:
    steps: list[tuple[str, Any]] = [("scale", StandardScaler())]
    if kind == "logistic":
        steps.append(("last", _logistic(c or 1.0)))
    else:
        steps += [("project", _Projection(kind, c or 1.0)), ("last", _logistic(1e6))]
    return Pipeline(steps)


def _grid(kind: ProbeKind, c: float | None) -> dict[str, list[float]] | None:
    """Values of C to choose from; None if it is given, or the probe has none."""
    if c is not None or kind == "mean_difference":
        return None
    return {"last__C" if kind == "logistic" else "project__C": list(C_GRID)}


def _direction(fitted: Pipeline) -> Direction:
    """The fitted probe as one vector over unscaled features."""
    scale, last = fitted.named_steps["scale"], fitted.named_steps["last"]
    weights = last.coef_[0].astype(np.float64)
    if "project" in fitted.named_steps:
        weights = weights[0] * fitted.named_steps["project"].direction_
    weights = weights / scale.scale_
    return Direction(weights=weights, bias=float(last.intercept_[0] - weights @ scale.mean_))


def _folds(targets: Array, of_group: Array, folds: int, seed: int) -> Array:
    """Fold of each row: groups stay together, and folds are alike in their labels."""
    least = min(len(np.unique(of_group[targets == one])) for one in (0, 1))
    if folds < 2 or least < folds:
        raise InvalidRequest(f"{folds} folds, and a class with {least} groups: choose 2 to {least} folds")
    split = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    fold_of = np.empty(len(targets), np.int64)
    for fold, (_, held_out) in enumerate(split.split(np.zeros(len(targets)), targets, of_group)):
        fold_of[held_out] = fold
    return fold_of


def _further_baselines(
    splits: _Splits,
    numbers: Array,
    c: float | None,
    *,
    lengths: Array | None,
    texts: Sequence[str] | None,
    others: Mapping[str, Array],
) -> dict[str, dict[str, Any]]:
    """Baselines that are logistic probes of other rows."""
    found = {}
    given = dict(others) if lengths is None else {"length": np.asarray(lengths)[:, None], **others}
    for name, rows in given.items():
        _same_length(rows, len(numbers), name)
        model, grid = _model("logistic", c), _grid("logistic", c)
        found[name] = splits.score(numbers, splits.out_of_fold(_matrix(rows, name), numbers, model, grid)[0])
    if texts is not None:
        _same_length(texts, len(numbers), "texts")
        vectors = TfidfVectorizer(max_features=WORDS, token_pattern=_WORD)
        words = Pipeline([("words", vectors), ("last", _logistic(c or 1.0))])
        # a word for an empty text, since a training set of empty texts would have no words
        filled = np.array([text if text.strip() else "(none)" for text in texts], object)
        chances, _ = splits.out_of_fold(filled, numbers, words)
        found["bag_of_words"] = splits.score(numbers, chances)
    return {name: one.brief() for name, one in found.items()}


def _matrix(rows: Array, name: str) -> Array:
    rows = np.asarray(rows)
    if rows.ndim != 2 or rows.dtype.kind not in "fiub" or not rows.size:
        raise InvalidRequest(f"{name} must be numbers [n, width], not {rows.dtype} {list(rows.shape)}")
    rows = rows if rows.dtype == np.float32 else rows.astype(np.float64)
    if not np.isfinite(rows).all():
        raise InvalidRequest(f"{name} contain NaN or infinite values")
    return rows


def _same_length(values: Any, rows: int, name: str) -> None:
    if len(values) != rows:
        raise InvalidRequest(f"{name} has {len(values)} rows, the features have {rows}")


def _group_numbers(features: Array, groups: Array | Sequence[Hashable] | None) -> Array:
    if groups is None:
        groups = [blake2b(row.tobytes(), digest_size=16).hexdigest() for row in features]
    _same_length(groups, len(features), "groups")
    return np.unique(np.asarray(groups), return_inverse=True)[1].ravel()
