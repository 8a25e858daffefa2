"""Linear probes that predict numbers: ridge regression beside its baselines, cross-validated over groups.

result = regression(features, numbers, groups=problems, lengths=answer_tokens)
result.scores.r2, result.scores.spearman, result.baselines["length"]["r2"]
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from actograph.analysis import blas_threads
from actograph.analysis.probe import (
    as_matrix,
    baseline_rows,
    corrected_p_values,
    group_numbers,
    require_length,
    shuffle_groups,
    word_vectors,
    words_of,
)
from actograph.analysis.probe_fit import C_GRID, INNER_FOLDS
from actograph.analysis.probe_labels import predicts, require_groups
from actograph.analysis.probe_scores import interval
from actograph.contract.errors import InvalidRequest

Array = NDArray[Any]
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class RegressionScores:
    """Scores on rows that the probe was not fitted on.

    `r2` is 1 less the squared error over that of the training rows' mean, over all held-out rows: 0 for a
    probe that predicts this mean. `spearman` is the mean over folds of the rank correlation; a fold whose
    predictions or numbers are all equal counts as 0. Intervals are percentile bootstraps over groups at
    fixed probes.
    """

    r2: float
    r2_interval: tuple[float, float]
    spearman: float
    spearman_interval: tuple[float, float]

    def as_json(self) -> dict[str, Any]:
        """JSON object of all fields."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class RegressionResult:
    """Scores of a regression on held-out rows, its baselines, and its direction.

    The number of a row is predicted as `features @ weights + bias`.
    """

    scores: RegressionScores
    #: name -> r2, r2_interval, spearman, spearman_interval
    baselines: dict[str, dict[str, Any]]
    rows: int
    groups: int
    width: int
    #: C of each fold; alpha is 1 / (2 C)
    chosen_c: tuple[float, ...]
    weights: Vector = field(repr=False)
    bias: float
    #: out-of-fold prediction, [n]
    predictions: Vector = field(repr=False)
    #: fold of each row, [n]
    fold_of: Array = field(repr=False)
    #: R² after each shuffle of the numbers among the groups
    shuffled_r2s: tuple[float, ...] = field(repr=False)

    @property
    def p_value(self) -> float | None:
        """Share of shuffles that reach the R², the data's own order included; None without shuffles."""
        if not self.shuffled_r2s:
            return None
        return corrected_p_values({"": (self.scores.r2, self.shuffled_r2s)})[""]

    def as_json(self) -> dict[str, Any]:
        """JSON object of everything but the arrays."""
        return {
            **self.scores.as_json(),
            "baselines": self.baselines,
            "kind": "ridge",
            **{name: getattr(self, name) for name in ("rows", "groups", "width")},
            "c": list(self.chosen_c),
            "p_value": self.p_value,
            "shuffled_r2s": list(self.shuffled_r2s),
            "warnings": [],
        }


@blas_threads.one_if_small
def regression(
    features: Array,
    labels: Array | Sequence[float],
    groups: Array | Sequence[Hashable] | None = None,
    *,
    folds: int = 5,
    c: float | None = None,
    seed: int = 0,
    resamples: int = 1000,
    level: float = 0.95,
    shuffles: int = 19,
    lengths: Array | None = None,
    texts: Sequence[str] | None = None,
    others: Mapping[str, Array | Sequence[str]] | None = None,
) -> RegressionResult:
    """Fit and score a ridge regression by cross-validation over groups.

    Args:
        features: [n, width].
        labels: numbers of three or more values, [n].
        c: alpha is 1 / (2 C); None chooses it per fold on held-out training groups.

    All others are those of `probe`. Baselines are regressions of other rows or of words, and `mean`.

    Raises:
        InvalidRequest: the arrays do not fit together, or there are fewer groups than folds.
    """
    if c is not None and not (np.isfinite(c) and c > 0):
        raise InvalidRequest(f"c is {c}; it must be a positive number")
    features = as_matrix(features, "features")
    given = np.asarray(labels)
    require_length(given, len(features), "labels")
    if predicts(given, "ridge") != "numbers":
        raise InvalidRequest("labels of two values are classes; use a probe")
    numbers = given.astype(np.float64)
    of_group = group_numbers(features, groups)
    splits = _RegressionFolds(
        of_group=of_group, fold_of=_folds(numbers, of_group, folds, seed), c=c, resamples=resamples,
        level=level, seed=seed,
    )  # fmt: skip
    predictions, chosen = splits.out_of_fold(features, numbers, _scaled())
    strength = float(np.median(chosen)) if chosen else c or 1.0
    baselines = {"mean": splits.score(numbers, splits.means(numbers)).as_json()}
    for name, values in baseline_rows(lengths, texts, others or {}).items():
        require_length(values, len(numbers), name)
        if np.asarray(values).dtype.kind in "UO":
            found, _ = splits.out_of_fold(words_of(values), numbers, _words())
        else:
            found, _ = splits.out_of_fold(as_matrix(values, name), numbers, _scaled())
        baselines[name] = splits.score(numbers, found).as_json()
    shuffled = splits.shuffled(features, numbers, strength, shuffles)
    if shuffled:
        baselines["shuffled_labels"] = _spread(shuffled, level)
    whole = _scaled().set_params(last__alpha=1 / (2 * strength)).fit(features, numbers)
    weights = whole.named_steps["last"].coef_.astype(np.float64) / whole.named_steps["scale"].scale_
    bias = float(whole.named_steps["last"].intercept_) - float(weights @ whole.named_steps["scale"].mean_)
    return RegressionResult(
        scores=splits.score(numbers, predictions), baselines=baselines, rows=len(features),
        groups=int(of_group.max()) + 1, width=features.shape[1], chosen_c=chosen, weights=weights, bias=bias,
        predictions=predictions, fold_of=splits.fold_of, shuffled_r2s=tuple(one for one, _ in shuffled),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _RegressionFolds:
    """The folds that a regression and its baselines share."""

    of_group: Array
    fold_of: Array
    c: float | None
    resamples: int
    level: float
    seed: int

    def out_of_fold(self, rows: Array, numbers: Vector, model: Pipeline) -> tuple[Vector, tuple[float, ...]]:
        """Prediction for each row by the regression of the other folds; each chosen C."""
        predictions, chosen = np.empty(len(numbers)), []
        for fold in np.unique(self.fold_of):
            train = self.fold_of != fold
            fitted, c = self._fit(model, rows[train], numbers[train], self.of_group[train])
            predictions[~train] = fitted.predict(rows[~train])
            if c is not None:
                chosen.append(c)
        return predictions, tuple(chosen)

    def _fit(
        self, model: Pipeline, rows: Array, numbers: Vector, groups: Array
    ) -> tuple[Pipeline, float | None]:
        """Fit with the given C, or with the one of the least squared error on held-out groups."""
        if self.c is not None:
            return model.set_params(last__alpha=1 / (2 * self.c)).fit(rows, numbers), None
        count = len(np.unique(groups))
        if count < 2:
            raise InvalidRequest(
                "only one group is among the training rows of a fold, too few to hold one out for the choice "
                "of C; add groups, choose more folds, or give c"
            )
        inner = PredefinedSplit(_fold_of_groups(groups, min(INNER_FOLDS, count), self.seed))
        alphas = {1 / (2 * c): c for c in C_GRID}
        search = GridSearchCV(
            model, {"last__alpha": list(alphas)}, scoring="neg_mean_squared_error", cv=inner
        )
        search.fit(rows, numbers)
        return search.best_estimator_, alphas[search.best_params_["last__alpha"]]

    def means(self, numbers: Vector) -> Vector:
        """For each held-out row the mean of the training rows."""
        means = np.empty(len(numbers))
        for fold in np.unique(self.fold_of):
            means[self.fold_of == fold] = numbers[self.fold_of != fold].mean()
        return means

    def shuffled(self, rows: Array, numbers: Vector, c: float, shuffles: int) -> list[tuple[float, float]]:
        """R² and Spearman's correlation after each shuffle of the numbers among the groups."""
        generator, found = np.random.default_rng(self.seed), []
        fixed = _RegressionFolds(**{**vars(self), "c": c})
        for _ in range(shuffles):
            drawn = shuffle_groups(numbers, self.of_group, generator)
            predictions, _ = fixed.out_of_fold(rows, drawn, _scaled())
            every = np.arange(len(rows))
            found.append((_r2(self._missed(drawn, predictions)), self._spearman(drawn, predictions, every)))
        return found

    def score(self, numbers: Vector, predictions: Vector) -> RegressionScores:
        generator, count = np.random.default_rng(self.seed), int(self.of_group.max()) + 1
        rows_of = np.split(
            np.argsort(self.of_group, kind="stable"), np.cumsum(np.bincount(self.of_group))[:-1]
        )
        errors, ranks, missed = [], [], self._missed(numbers, predictions)
        for _ in range(self.resamples):
            rows = np.concatenate([rows_of[one] for one in generator.integers(count, size=count)])
            errors.append(_r2(missed[rows]))
            ranks.append(self._spearman(numbers, predictions, rows))
        every = np.arange(len(numbers))
        return RegressionScores(
            r2=_r2(missed),
            r2_interval=interval(errors, self.level),
            spearman=self._spearman(numbers, predictions, every),
            spearman_interval=interval(ranks, self.level),
        )

    def _missed(self, numbers: Vector, predictions: Vector) -> Vector:
        """Squared errors of the predictions and of the training rows' mean, [n, 2]."""
        return np.square(numbers[:, None] - np.stack([predictions, self.means(numbers)], axis=1))

    def _spearman(self, numbers: Vector, predictions: Vector, rows: Array) -> float:
        fold_of = self.fold_of[rows]
        inside = (rows[fold_of == fold] for fold in np.unique(fold_of))
        return float(np.mean([_rank_correlation(numbers[some], predictions[some]) for some in inside]))


def _r2(missed: Vector) -> float:
    """R² of squared errors [n, 2]; NaN if the mean of the training rows has none."""
    errors, around = missed.sum(axis=0)
    return 1 - float(errors / around) if around else float("nan")


def _rank_correlation(first: Vector, second: Vector) -> float:
    """Spearman's correlation, ties with their mean rank; 0 if a side is constant."""
    a, b = (ranks - ranks.mean() for ranks in (rankdata(first), rankdata(second)))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0


def _spread(shuffled: Sequence[tuple[float, float]], level: float) -> dict[str, Any]:
    """Means and quantiles over the shuffles."""
    r2s, ranks = ([one[place] for one in shuffled] for place in (0, 1))
    return {
        "r2": float(np.mean(r2s)),
        "r2_interval": interval(r2s, level),
        "spearman": float(np.mean(ranks)),
        "spearman_interval": interval(ranks, level),
    }


def _folds(numbers: Vector, of_group: Array, folds: int, seed: int) -> Array:
    """Fold of each row: groups stay together."""
    require_groups(numbers, of_group, folds, "numbers")
    return _fold_of_groups(of_group, folds, seed)


def _fold_of_groups(groups: Array, folds: int, seed: int) -> Array:
    """Fold of each row: groups at random, as many in each fold."""
    names, number = np.unique(groups, return_inverse=True)
    return np.asarray(np.random.default_rng(seed).permutation(len(names))[number] % folds)


def _scaled() -> Pipeline:
    return Pipeline([("scale", StandardScaler()), ("last", Ridge())])


def _words() -> Pipeline:
    return Pipeline([("words", word_vectors()), ("last", Ridge())])
