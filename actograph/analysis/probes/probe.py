"""Cross-validated probes beside their baselines."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from actograph.analysis.probes import estimators, folds, logistic, scores
from actograph.analysis.probes.estimators import ProbeKind
from actograph.analysis.probes.folded_rows import FoldedRows, Training, fold_rows
from actograph.analysis.probes.words import bag_of_words
from actograph.contract.errors import InvalidRequest

Vector = NDArray[np.float64]
Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """Settings of a probe.

    `c` is scikit-learn's C (ridge: alpha = 1 / (2 C)); None chooses it by inner validation.
    """

    kind: ProbeKind = "logistic"
    folds: int = 5
    c: float | None = None
    seed: int = 0
    resamples: int = 1000
    level: float = 0.95
    #: permutations behind the baseline of shuffled labels; 0 leaves it and the random labels out
    shuffles: int = 5

    def check(self) -> None:
        """Raise InvalidRequest if a value is out of range."""
        if self.kind not in get_args(ProbeKind):
            raise InvalidRequest(f"unknown probe {self.kind!r}; one of: {', '.join(get_args(ProbeKind))}")
        if self.c is not None and not (np.isfinite(self.c) and self.c > 0):
            raise InvalidRequest(f"c is {self.c}; it must be a positive number")
        if not 0 < self.level < 1 or self.resamples < 1 or self.shuffles < 0:
            raise InvalidRequest("level lies between 0 and 1, resamples from 1, shuffles from 0 on")


@dataclass(frozen=True, kw_only=True)
class Direction:
    """A probe fitted on all rows: the logit of the positive class is `features @ weights + bias`."""

    weights: Vector
    bias: float

    def chances(self, features: Array) -> Vector:
        """Probability of the positive class for each row, [n]."""
        return logistic.sigmoid(features.astype(np.float64) @ self.weights + self.bias)


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Scores of a probe, its baselines, and its direction."""

    scores: scores.Scores
    baselines: dict[str, dict[str, Any]]
    #: accuracy minus the accuracy on random labels of the same groups or types (Hewitt & Liang 2019)
    selectivity: float | None
    rows: int
    groups: int
    width: int
    #: the two labels, the positive one last
    classes: tuple[Any, Any]
    positive_rows: int
    options: ProbeOptions
    #: C of each fold; None for the difference of means
    chosen_c: tuple[float | None, ...]
    direction: Direction
    #: out-of-fold probability of the positive class, [n]
    chances: Vector = field(repr=False)
    #: fold of each row, [n]
    fold_of: folds.Integers = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """JSON object of everything but the arrays."""
        return {
            **self.scores.as_json(),
            "baselines": self.baselines,
            "selectivity": self.selectivity,
            "rows": self.rows,
            "groups": self.groups,
            "width": self.width,
            "classes": list(self.classes),
            "positive_rows": self.positive_rows,
            "probe": self.options.kind,
            "folds": self.options.folds,
            "seed": self.options.seed,
            "c": list(self.chosen_c),
        }


@dataclass(frozen=True)
class _Validated:
    chances: Vector
    chosen_c: tuple[float | None, ...]
    direction: Direction


def probe(
    features: Array,
    labels: Array | Sequence[Any],
    groups: Array | Sequence[Hashable] | None = None,
    *,
    options: ProbeOptions | None = None,
    lengths: Array | None = None,
    texts: Sequence[str] | None = None,
    others: Mapping[str, Array] | None = None,
    types: Array | Sequence[Hashable] | None = None,
) -> ProbeResult:
    """Fit and score a linear probe by cross-validation over groups.

    Each fold's probe is fitted on the other folds: standardisation, C and calibration included.

    Args:
        features: [n, width].
        labels: two different values, [n]; the larger one is the positive class.
        groups: rows of one group stay on one side of every split, [n]. Default: equal rows are a group.
        lengths: a number per row, such as tokens of the answer, [n]: the baseline `length`.
        texts: a text per row: the baseline `bag_of_words`.
        others: further features [n, any width] as baselines, such as `layer_0` or `embedding`.
        types: rows of one type share their random label in the control task. Default: `groups`.

    Raises:
        InvalidRequest: the arrays do not fit together, or there are fewer than two classes or groups.
    """
    options = options or ProbeOptions()
    options.check()
    features = _matrix(features, "features")
    classes, numbers = two_classes(labels, len(features))
    of_group = _group_numbers(features, groups)
    fold_of = folds.grouped_folds(of_group, numbers, options.folds, options.seed)
    fewer = replace(options, resamples=max(1, options.resamples // 5))

    def run(rows: FoldedRows, targets: Vector) -> tuple[scores.Scores, scores.Resampled]:
        validated = _cross_validate(rows.relabelled(targets), options)
        return _score(targets, validated.chances, fold_of, of_group, fewer)

    rows = fold_rows(features, numbers, fold_of)
    validated = _cross_validate(rows, options)
    scored, _ = _score(numbers, validated.chances, fold_of, of_group, options)
    baselines = _simple_baselines(numbers, fold_of, of_group, fewer)
    for name, matrix in _further(lengths, texts, others).items():
        _same_length(matrix, len(features), name)
        other = fold_rows(_matrix(matrix, name), numbers, fold_of)
        baselines[name] = scores.brief(run(other, numbers)[0])
    selectivity = None
    if options.shuffles:
        of_type = of_group if types is None else _group_numbers(features, types)
        baselines |= _controls(lambda targets: run(rows, targets), numbers, of_type, options)
        selectivity = scored.accuracy - baselines["random_labels"]["accuracy"]
    return ProbeResult(
        scores=scored, baselines=baselines, selectivity=selectivity, rows=len(features),
        groups=int(of_group.max()) + 1, width=features.shape[1], classes=classes,
        positive_rows=int(numbers.sum()), options=options, chosen_c=validated.chosen_c,
        direction=validated.direction, chances=validated.chances, fold_of=fold_of,
    )  # fmt: skip


def transfer(
    fitted: ProbeResult,
    features: Array,
    labels: Array | Sequence[Any],
    groups: Array | Sequence[Hashable] | None = None,
) -> scores.Scores:
    """Score a probe on rows of another job, which it was not fitted on.

    Args:
        features: [m, width] of the same hook.
        labels: values of the probe's two classes, [m].

    Raises:
        InvalidRequest: the width differs, or a label is of neither class.
    """
    features = _matrix(features, "features")
    if features.shape[1] != fitted.width:
        raise InvalidRequest(f"the probe has width {fitted.width}, the features have {features.shape[1]}")
    values = np.asarray(labels)
    _same_length(values, len(features), "labels")
    numbers = (values == fitted.classes[1]).astype(np.float64)
    if not (numbers.astype(bool) | (values == fitted.classes[0])).all():
        raise InvalidRequest(f"labels must be {fitted.classes[0]!r} or {fitted.classes[1]!r}")
    of_group = _group_numbers(features, groups)
    chances = fitted.direction.chances(features)
    return _score(numbers, chances, np.zeros(len(numbers), dtype=np.int64), of_group, fitted.options)[0]


def two_classes(labels: Array | Sequence[Any], rows: int) -> tuple[tuple[Any, Any], Vector]:
    """Return the two labels and the number of each row's class.

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
    return (found[0].item(), found[1].item()), (values == found[1]).astype(np.float64)


def _cross_validate(rows: FoldedRows, options: ProbeOptions) -> _Validated:
    chances = np.empty(len(rows.order))
    chosen: list[float | None] = []
    for fold in range(rows.folds):
        # the next fold is the inner validation
        others = [(fold + step) % rows.folds for step in (*range(2, rows.folds), 1)]
        fitted = estimators.fit_tuned(rows, others, options.kind, options.c)
        start, stop = rows.bounds[fold]
        chances[rows.order[start:stop]] = logistic.sigmoid(fitted.logits(fold))
        chosen.append(fitted.c)
    known = sorted(c for c in chosen if c is not None)
    whole = estimators.fit_tuned(
        rows, list(range(rows.folds)), options.kind, known[len(known) // 2] if known else None
    )
    weights, bias = Training.in_features(whole.training, whole.weights, whole.bias)
    return _Validated(chances, tuple(chosen), Direction(weights=weights, bias=bias))


def _group_numbers(features: Array, groups: Array | Sequence[Hashable] | None) -> folds.Integers:
    found = folds.identical_rows(features) if groups is None else folds.group_numbers(groups)
    _same_length(found, len(features), "groups")
    return found


def _further(
    lengths: Array | None, texts: Sequence[str] | None, others: Mapping[str, Array] | None
) -> dict[str, Array]:
    """Features of the baselines that are probes of other rows."""
    found: dict[str, Array] = dict(others or {})
    if lengths is not None:
        found["length"] = np.asarray(lengths, dtype=np.float64)[:, None]
    if texts is not None:
        found["bag_of_words"] = bag_of_words(texts)
    return found


def _score(
    labels: Vector, chances: Vector, fold_of: Array, groups: Array, options: ProbeOptions
) -> tuple[scores.Scores, scores.Resampled]:
    return scores.score(
        labels, chances, fold_of, groups,
        resamples=options.resamples, level=options.level, seed=options.seed,
    )  # fmt: skip


def _simple_baselines(
    labels: Vector, fold_of: Array, groups: Array, options: ProbeOptions
) -> dict[str, dict[str, Any]]:
    """Predict each fold by the class that is more frequent in the others."""
    chances = np.empty(len(labels))
    for fold in np.unique(fold_of):
        inside = fold_of == fold
        chances[inside] = labels[~inside].mean()
    return {"majority": scores.brief(_score(labels, chances, fold_of, groups, options)[0])}


def _controls(
    run: Callable[[Vector], tuple[scores.Scores, scores.Resampled]],
    labels: Vector,
    types: folds.Integers,
    options: ProbeOptions,
) -> dict[str, dict[str, Any]]:
    """Baselines that fit labels without a relation to the features."""
    generator = np.random.default_rng(options.seed)
    runs = [run(generator.permutation(labels)) for _ in range(options.shuffles)]
    control, _ = run(_random_labels(types, generator))
    return {
        "shuffled_labels": scores.brief_of_runs(runs, options.level),
        "random_labels": scores.brief(control),
    }


def _random_labels(types: Array, generator: np.random.Generator) -> Vector:
    """Label half of the types, drawn at random, as positive."""
    count = int(types.max()) + 1
    drawn = generator.permutation(count) < count / 2
    return np.asarray(drawn[types].astype(np.float64))


def _matrix(features: Array, name: str) -> Array:
    features = np.asarray(features)
    if features.ndim != 2 or features.dtype.kind not in "fiub" or not features.shape[1]:
        raise InvalidRequest(f"{name} must be numbers [n, width], not {features.dtype} {features.shape}")
    return features


def _same_length(values: Array, rows: int, name: str) -> None:
    if len(values) != rows:
        raise InvalidRequest(f"{name} has {len(values)} rows; the features have {rows}")
