"""Linear probes, cross-validated over groups, beside their baselines. On scikit-learn.

    result = probe(features, labels, groups=problems, lengths=answer_tokens)
    result.auroc, result.auroc_interval, result.baselines["length"]["auroc"]

Nothing of a held-out row is used to fit: standardisation, C and calibration are those of the training rows.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import Pipeline

from actograph.analysis import blas_threads
from actograph.analysis.probe_fit import Fitted, ProbeKind, classifier, fit
from actograph.analysis.probe_labels import predicts, require_groups
from actograph.analysis.probe_scores import Scores, interval, mean_auroc, score
from actograph.contract.errors import InvalidRequest

Array = NDArray[Any]
Vector = NDArray[np.float64]
#: rows, labels and groups to fit on -> the classifier
Fit = Callable[[Array, Array, Array], Fitted]
#: words of the bag-of-words baseline
WORDS = 5_000
#: words of any length, numbers and signs
_WORD = r"\w+|[^\w\s]"
#: draws for a shuffle of labels that can be split into folds
_DRAWS = 100


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
    #: AUROC after each shuffle of the labels among the groups
    shuffled_aurocs: tuple[float, ...] = field(repr=False)
    #: doubts about the result, for people
    warnings: tuple[str, ...] = ()

    @property
    def auroc(self) -> float:
        return self.scores.auroc

    @property
    def auroc_interval(self) -> tuple[float, float]:
        return self.scores.auroc_interval

    @property
    def accuracy(self) -> float:
        return self.scores.accuracy

    @property
    def p_value(self) -> float | None:
        """Share of shuffles that reach the AUROC, the data's own order included; None without shuffles.

        For the best of several probes see `corrected_p_values`.
        """
        if not self.shuffled_aurocs:
            return None
        return corrected_p_values({"": (self.auroc, self.shuffled_aurocs)})[""]

    def as_json(self) -> dict[str, Any]:
        """JSON object of everything but the arrays."""
        names = ("kind", "rows", "groups", "width", "positive_rows")
        return {
            **self.scores.as_json(),
            "baselines": self.baselines,
            **{name: getattr(self, name) for name in names},
            "classes": list(self.classes),
            "c": list(self.chosen_c),
            "p_value": self.p_value,
            "shuffled_aurocs": list(self.shuffled_aurocs),
            "warnings": list(self.warnings),
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
        features, values = as_matrix(features, "features"), np.asarray(labels)
        if features.shape[1] != self.width:
            raise InvalidRequest(f"the probe has width {self.width}, the features have {features.shape[1]}")
        require_length(values, len(features), "labels")
        if not np.isin(values, self.classes).all():
            raise InvalidRequest(f"labels must be {self.classes[0]!r} or {self.classes[1]!r}")
        numbers = (values == self.classes[1]).astype(np.int64)
        of_group = group_numbers(features, groups)
        return score(numbers, self.direction.chances(features), np.zeros(len(numbers), int), of_group)


def corrected_p_values(probes: Mapping[str, tuple[float, Sequence[float]]]) -> dict[str, float]:
    """p-values for the best of several probes of the same rows: the shuffles' best AUROCs are what counts.

    Source: Westfall & Young, Resampling-based multiple testing (1993), the max-T method.

    Args:
        probes: name -> AUROC, and AUROC after each shuffle; the same seed and groups give the same shuffles.
    """
    count = min(len(shuffled) for _, shuffled in probes.values())
    best = np.max([shuffled[:count] for _, shuffled in probes.values()], axis=0)
    return {
        name: (1 + int((best >= auroc - 1e-12).sum())) / (1 + count) for name, (auroc, _) in probes.items()
    }


@blas_threads.one_if_small
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
    shuffles: int = 19,
    lengths: Array | None = None,
    texts: Sequence[str] | None = None,
    others: Mapping[str, Array | Sequence[str]] | None = None,
) -> ProbeResult:
    """Fit and score a linear probe by cross-validation over groups.

    Args:
        features: [n, width].
        labels: two different values, [n]; the larger one is the positive class.
        groups: rows of one group, such as a problem, stay on one side of every split, [n]. Default: equal
            rows are a group.
        kind: logistic regression, ridge regression, or the difference of means; see `probe_fit.fit`. For
            labels that are numbers of more values see `regression`.
        c: scikit-learn's C (ridge: alpha = 1 / (2 C)); None chooses it per fold on held-out training groups.
        resamples: resamples of the bootstrap over groups, at fixed probes.
        shuffles: shuffles of the labels among the groups, for `shuffled_labels` and the p-value; each fits a
            probe per fold, at the median of the chosen C.
        lengths: a number per row, such as tokens of the answer, [n]: the baseline `length`.
        texts: a text per row: the baseline `bag_of_words`.
        others: further features [n, any width] or texts [n] as baselines, such as `layer_0`.

    Raises:
        InvalidRequest: the arrays do not fit together, or there are fewer than two classes, or a class has
            too few groups.
    """
    if kind not in get_args(ProbeKind):
        raise InvalidRequest(f"unknown probe {kind!r}; one of: {', '.join(get_args(ProbeKind))}")
    if c is not None and not (np.isfinite(c) and c > 0):
        raise InvalidRequest(f"c is {c}; it must be a positive number")
    features = as_matrix(features, "features")
    classes, numbers = two_classes(labels, len(features))
    of_group = group_numbers(features, groups)
    fold_of = _folds(numbers, of_group, folds, seed)
    splits = _ProbeFolds(of_group=of_group, fold_of=fold_of, resamples=resamples, level=level, seed=seed)

    def fitted(rows: Array, targets: Array, groups: Array, strength: float | None = c) -> Fitted:
        return fit(kind, rows, targets, groups, c=strength, seed=seed)

    chances, chosen = splits.out_of_fold(features, numbers, fitted)
    strength = float(np.median(chosen)) if chosen else c
    scores = splits.score(numbers, chances)
    shuffled = splits.shuffled(features, numbers, classifier(kind, strength or 1.0), shuffles)
    baselines = {
        "majority": splits.score(numbers, splits.shares(numbers)).brief(),
        **_further_baselines(splits, numbers, c, lengths=lengths, texts=texts, others=others or {}),
        **({"shuffled_labels": shuffled.brief(level)} if shuffled.aurocs else {}),
    }
    whole = fitted(features, numbers, of_group, strength)
    return ProbeResult(
        scores=scores, baselines=baselines, kind=kind, rows=len(features),
        groups=int(of_group.max()) + 1, width=features.shape[1], classes=classes,
        positive_rows=int(numbers.sum()), chosen_c=chosen, direction=_direction(whole),
        chances=chances, fold_of=fold_of, shuffled_aurocs=tuple(shuffled.aurocs),
        warnings=tuple(_warnings(scores, baselines, lacks_shuffles=shuffles > len(shuffled.aurocs) == 0)),
    )  # fmt: skip


@dataclass(frozen=True)
class _Shuffled:
    """Scores after each shuffle of the labels."""

    aurocs: list[float]
    accuracies: list[float]

    def brief(self, level: float) -> dict[str, Any]:
        """Means and quantiles over the shuffles."""
        return {
            "auroc": float(np.mean(self.aurocs)),
            "auroc_interval": interval(self.aurocs, level),
            "accuracy": float(np.mean(self.accuracies)),
            "accuracy_interval": interval(self.accuracies, level),
        }


@dataclass(frozen=True, kw_only=True)
class _ProbeFolds:
    """The folds that a probe and its baselines share."""

    of_group: Array
    fold_of: Array
    resamples: int
    level: float
    seed: int

    def out_of_fold(self, rows: Array, targets: Array, fit: Fit) -> tuple[Vector, tuple[float, ...]]:
        """Probability of the positive class for each row, by the probe of the other folds; each chosen C."""
        chances, chosen = np.empty(len(targets)), []
        for fold in range(int(self.fold_of.max()) + 1):
            train = self.fold_of != fold
            fitted = fit(rows[train], targets[train], self.of_group[train])
            if fitted.chosen_c is not None:
                chosen.append(fitted.chosen_c)
            chances[~train] = fitted.chances(rows[~train])
        return chances, tuple(chosen)

    def shares(self, targets: Array) -> Vector:
        """For each held-out row the share of positive rows among the training rows."""
        chances = np.empty(len(targets))
        for fold in np.unique(self.fold_of):
            chances[self.fold_of == fold] = targets[self.fold_of != fold].mean()
        return chances

    def shuffled(self, rows: Array, targets: Array, model: Pipeline, shuffles: int) -> _Shuffled:
        """Score probes of labels that are shuffled among the groups.

        Rows of a group keep together: if its label is that of the problem, shuffled rows would be easier to
        tell from it than other problems are. There are fewer shuffles if few suit the folds.
        """
        generator, found = np.random.default_rng(self.seed), _Shuffled([], [])
        for _ in range(shuffles):
            draws = (shuffle_groups(targets, self.of_group, generator) for _ in range(_DRAWS))
            labels = next((one for one in draws if _fault(one, self.fold_of) is None), None)
            if labels is not None:
                chances, _ = self.out_of_fold(
                    rows, labels, lambda part, of, _: Fitted(model=model.fit(part, of))
                )
                found.aurocs.append(mean_auroc(labels, chances, self.fold_of))
                found.accuracies.append(float(((chances >= 0.5) == (labels == 1)).mean()))
        return found

    def score(self, targets: Array, chances: Vector) -> Scores:
        options: dict[str, Any] = {"resamples": self.resamples, "level": self.level, "seed": self.seed}
        return score(targets, chances, self.fold_of, self.of_group, **options)


def shuffle_groups(targets: Array, of_group: Array, generator: np.random.Generator) -> Array:
    """Give each group the labels of another one, [n]; a larger group repeats them, a smaller one takes some.

    Args:
        targets: values of any kind, [n].
        of_group: number of each row's group, from 0 on without gaps, [n].
    """
    rows_of = np.split(np.argsort(of_group, kind="stable"), np.cumsum(np.bincount(of_group))[:-1])
    shuffled = np.empty_like(targets)
    for rows, other in zip(rows_of, generator.permutation(len(rows_of)), strict=True):
        shuffled[rows] = np.resize(generator.permutation(targets[rows_of[other]]), len(rows))
    return shuffled


def _warnings(
    scores: Scores, baselines: Mapping[str, Mapping[str, Any]], *, lacks_shuffles: bool
) -> list[str]:
    intervals = {"the probe": scores.auroc_interval} | {
        name: one["auroc_interval"] for name, one in baselines.items() if name != "shuffled_labels"
    }
    found = [
        f"the AUROC of {name} lies below chance: related rows may be in several groups, so that a fold is "
        "trained on the opposite of what it is tested on; choose groups that keep them together"
        for name, (_, high) in intervals.items()
        if high < 0.5
    ]
    if lacks_shuffles:
        found.append("there is no p-value: the labels cannot be shuffled among so few groups")
    return found


def two_classes(labels: Array | Sequence[Any], rows: int) -> tuple[tuple[Any, Any], Array]:
    """Return the two labels and the number of each row's class, 0 or 1.

    Raises:
        InvalidRequest: there are not exactly two different labels, or one is NaN.
    """
    values = np.asarray(labels)
    require_length(values, rows, "labels")
    if predicts(values, "logistic") != "classes":
        raise InvalidRequest("labels must have two different values")
    found = np.unique(values)
    return (found[0].item(), found[1].item()), (values == found[1]).astype(np.int64)


def _direction(fitted: Fitted) -> Direction:
    """The fitted probe as one vector over unscaled features."""
    scale, last = fitted.model.named_steps["scale"], fitted.model.named_steps["last"]
    weights = fitted.slope * last.coef_.reshape(-1).astype(np.float64) / scale.scale_
    offset = fitted.slope * float(last.intercept_[0]) + fitted.offset
    return Direction(weights=weights, bias=offset - float(weights @ scale.mean_))


def _folds(targets: Array, of_group: Array, folds: int, seed: int) -> Array:
    """Fold of each row: groups stay together, and folds are alike in their labels."""
    require_groups(targets, of_group, folds, "classes")
    split = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    fold_of = np.empty(len(targets), np.int64)
    for fold, (_, held_out) in enumerate(split.split(np.zeros(len(targets)), targets, of_group)):
        fold_of[held_out] = fold
    if (fault := _fault(targets, fold_of)) is not None:
        raise InvalidRequest(f"{fault}; choose other folds, or smaller groups")
    return fold_of


def _fault(targets: Array, fold_of: Array) -> str | None:
    """Why no probe can be fitted and scored in these folds; None if it can."""
    inside = [len(np.unique(targets[fold_of == fold])) for fold in np.unique(fold_of)]
    outside = [len(np.unique(targets[fold_of != fold])) for fold in np.unique(fold_of)]
    if min(outside) < 2:
        return f"the rows of one label all lie in fold {int(np.argmin(outside))}"
    return None if max(inside) == 2 else "no fold holds rows of both labels"


def _further_baselines(
    splits: _ProbeFolds,
    numbers: Array,
    c: float | None,
    *,
    lengths: Array | None,
    texts: Sequence[str] | None,
    others: Mapping[str, Array | Sequence[str]],
) -> dict[str, dict[str, Any]]:
    """Baselines that are logistic probes of other rows, or of the words of texts."""

    def of_rows(rows: Array, targets: Array, groups: Array) -> Fitted:
        return fit("logistic", rows, targets, groups, c=c, seed=splits.seed)

    def of_words(rows: Array, targets: Array, _: Array) -> Fitted:
        last = LogisticRegression(C=c or 1.0, max_iter=2_000)
        return Fitted(model=Pipeline([("words", word_vectors()), ("last", last)]).fit(rows, targets))

    found = {}
    for name, values in baseline_rows(lengths, texts, others).items():
        require_length(values, len(numbers), name)
        if np.asarray(values).dtype.kind in "UO":
            chances, _ = splits.out_of_fold(words_of(values), numbers, of_words)
        else:
            chances, _ = splits.out_of_fold(as_matrix(values, name), numbers, of_rows)
        found[name] = splits.score(numbers, chances).brief()
    return found


def baseline_rows(
    lengths: Array | None, texts: Sequence[str] | None, others: Mapping[str, Any]
) -> dict[str, Any]:
    """Rows or texts of the baselines by their names."""
    given: dict[str, Any] = {} if lengths is None else {"length": np.asarray(lengths)[:, None]}
    return given | dict(others) | ({} if texts is None else {"bag_of_words": texts})


def words_of(texts: Sequence[str]) -> Array:
    """The texts [n], with a word for an empty one, since a training set of empty texts has no words."""
    return np.array([text if text.strip() else "(none)" for text in texts], object)


def word_vectors() -> TfidfVectorizer:
    """Unfitted features of a bag of words."""
    return TfidfVectorizer(max_features=WORDS, token_pattern=_WORD)


def as_matrix(rows: Array, name: str) -> Array:
    """The rows as numbers [n, width]. Raises InvalidRequest if they are not finite numbers."""
    rows = np.asarray(rows)
    if rows.ndim != 2 or rows.dtype.kind not in "fiub" or not rows.size:
        raise InvalidRequest(f"{name} must be numbers [n, width], not {rows.dtype} {list(rows.shape)}")
    rows = rows if rows.dtype == np.float32 else rows.astype(np.float64)
    if not np.isfinite(rows).all():
        raise InvalidRequest(f"{name} contain NaN or infinite values")
    return rows


def require_length(values: Any, rows: int, name: str) -> None:
    """Raises InvalidRequest unless there is a value for each row."""
    if len(values) != rows:
        raise InvalidRequest(f"{name} has {len(values)} rows, the features have {rows}")


def group_numbers(features: Array, groups: Array | Sequence[Hashable] | None) -> Array:
    """Number of each row's group from 0 on, [n]; equal rows are a group by default."""
    if groups is None:
        groups = [blake2b(row.tobytes(), digest_size=16).hexdigest() for row in features]
    require_length(groups, len(features), "groups")
    return np.unique(np.asarray(groups), return_inverse=True)[1].ravel()
