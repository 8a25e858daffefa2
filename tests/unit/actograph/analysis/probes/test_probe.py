"""Probes beside scikit-learn, planted directions, shuffled labels and duplicated problems."""

from math import erf, sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actograph.analysis.probes import folds, scores
from actograph.analysis.probes.estimators import ProbeKind
from actograph.analysis.probes.probe import ProbeOptions, probe, transfer
from actograph.analysis.probes.words import bag_of_words
from actograph.contract.errors import InvalidRequest

sklearn_linear = pytest.importorskip("sklearn.linear_model")
sklearn_metrics = pytest.importorskip("sklearn.metrics")
sklearn_pipeline = pytest.importorskip("sklearn.pipeline")
sklearn_scaling = pytest.importorskip("sklearn.preprocessing")

Array = NDArray[Any]


def planted(rows: int, width: int, distance: float, seed: int = 0) -> tuple[Array, Array]:
    """Two normal classes whose means lie `distance` standard deviations apart."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, rows)
    direction = generator.normal(size=width)
    direction /= np.linalg.norm(direction)
    noise = generator.normal(size=(rows, width))
    return noise + np.outer(labels - 0.5, direction * distance), labels


@pytest.mark.parametrize("kind", ["logistic", "ridge"])
@pytest.mark.parametrize(("rows", "width"), [(900, 24), (80, 120)])
def test_numbers_equal_those_of_scikit_learn(kind: ProbeKind, rows: int, width: int) -> None:
    features, labels = planted(rows, width, 1.5)
    features = features * np.geomspace(0.01, 100, width) + 50
    found = probe(features, labels, options=ProbeOptions(kind=kind, resamples=20, shuffles=0))
    areas, right = [], 0
    for fold, c in enumerate(found.chosen_c):
        assert c is not None
        inside = found.fold_of == fold
        model = sklearn_pipeline.make_pipeline(
            sklearn_scaling.StandardScaler(),
            sklearn_linear.LogisticRegression(C=c, tol=1e-9, max_iter=10_000)
            if kind == "logistic"
            else sklearn_linear.RidgeClassifier(alpha=1 / (2 * c)),
        ).fit(features[~inside], labels[~inside])
        areas.append(sklearn_metrics.roc_auc_score(labels[inside], model.decision_function(features[inside])))
        if kind == "logistic":
            chances = model.predict_proba(features[inside])[:, 1]
            assert np.abs(chances - found.chances[inside]).max() < 1e-4
            right += int(((chances >= 0.5) == labels[inside]).sum())
    assert found.scores.auroc == pytest.approx(float(np.mean(areas)), abs=1e-9)
    if kind == "logistic":
        assert found.scores.accuracy == right / rows
        assert found.scores.brier == pytest.approx(sklearn_metrics.brier_score_loss(labels, found.chances))
        assert found.scores.log_loss == pytest.approx(sklearn_metrics.log_loss(labels, found.chances))


def test_float32_rows_with_a_large_mean_give_the_same_probe() -> None:
    features, labels = planted(600, 12, 1.5)
    features[:, 3] = features[:, 3] / 10 + 500
    options = ProbeOptions(resamples=10, shuffles=0, c=0.1)
    exact = probe(features, labels, options=options)
    rounded = probe(features.astype(np.float32), labels, options=options)
    assert np.abs(exact.chances - rounded.chances).max() < 1e-3


@pytest.mark.parametrize("kind", ["logistic", "ridge", "mean_difference"])
def test_a_planted_direction_is_read_at_its_bayes_accuracy(kind: ProbeKind) -> None:
    distance = 2.0
    features, labels = planted(6000, 16, distance)
    found = probe(features, labels, options=ProbeOptions(kind=kind, resamples=300)).scores
    bayes_accuracy = 0.5 * (1 + erf(distance / 2 / sqrt(2)))
    bayes_auroc = 0.5 * (1 + erf(distance / 2))
    assert found.accuracy_interval[0] <= bayes_accuracy <= found.accuracy_interval[1]
    assert found.auroc_interval is not None
    assert found.auroc_interval[0] <= bayes_auroc <= found.auroc_interval[1]
    assert found.calibration_error < 0.03


@pytest.mark.parametrize("seed", range(4))
def test_the_interval_of_shuffled_labels_contains_chance(seed: int) -> None:
    features, labels = planted(300, 40, 3.0, seed)
    found = probe(features, labels, options=ProbeOptions(seed=seed, resamples=200))
    low, high = found.baselines["shuffled_labels"]["auroc_interval"]
    assert low <= 0.5 <= high
    assert found.scores.auroc is not None
    assert found.scores.auroc > high
    assert found.selectivity is not None
    assert found.selectivity > 0.2


def test_duplicated_problems_never_stand_on_both_sides() -> None:
    """Random labels of duplicated rows are learnt by heart if the duplicates are split."""
    generator = np.random.default_rng(0)
    problems = np.repeat(np.arange(60), 5)
    features = generator.normal(size=(60, 200))[problems] + generator.normal(size=(300, 200)) * 0.01
    labels = generator.integers(0, 2, 60)[problems]
    options = ProbeOptions(resamples=200, shuffles=0)
    grouped = probe(features, labels, problems, options=options)
    split = probe(features, labels, np.arange(300), options=options)
    assert all(len(np.unique(grouped.fold_of[problems == one])) == 1 for one in range(60))
    assert split.scores.auroc is not None
    assert split.scores.auroc > 0.95
    assert grouped.scores.auroc_interval is not None
    assert grouped.scores.auroc_interval[0] <= 0.5 <= grouped.scores.auroc_interval[1]


def test_equal_rows_are_a_group_by_default() -> None:
    features, labels = planted(40, 8, 1.0)
    found = probe(np.repeat(features, 3, axis=0), np.repeat(labels, 3), options=ProbeOptions(resamples=10))
    assert found.groups == 40
    assert (found.fold_of.reshape(40, 3) == found.fold_of.reshape(40, 3)[:, :1]).all()


def test_folds_are_even_and_depend_on_the_seed() -> None:
    groups = np.repeat(np.arange(100), np.random.default_rng(0).integers(1, 5, 100))
    labels = (groups % 3 == 0).astype(float)
    first = folds.grouped_folds(groups, labels, 5, seed=1)
    assert (first == folds.grouped_folds(groups, labels, 5, seed=1)).all()
    assert (first != folds.grouped_folds(groups, labels, 5, seed=2)).any()
    assert np.ptp(np.bincount(first)) <= 5
    assert np.ptp(np.bincount(first, weights=labels)) <= 5


def test_baselines_read_what_they_are_given() -> None:
    generator = np.random.default_rng(3)
    labels = np.arange(200) % 2
    found = probe(
        generator.normal(size=(200, 4)),
        labels,
        lengths=labels * 3 + generator.normal(size=200),
        texts=[f"word{one % 7} {'yes' if one % 2 else 'no'}" for one in range(200)],
        others={"embedding": generator.normal(size=(200, 3))},
        options=ProbeOptions(resamples=50, shuffles=1),
    )
    by_name = {name: one["auroc"] for name, one in found.baselines.items()}
    assert set(by_name) == {
        "majority", "length", "bag_of_words", "embedding", "shuffled_labels", "random_labels"
    }  # fmt: skip
    assert by_name["majority"] == 0.5
    assert by_name["length"] > 0.95
    assert by_name["bag_of_words"] == 1.0


def test_bag_of_words_counts_the_most_widespread_words() -> None:
    assert bag_of_words(["a b", "a a"], 1).tolist() == [[np.log(2, dtype="f4")], [np.log(3, dtype="f4")]]
    assert bag_of_words(["", ""]).tolist() == [[0.0], [0.0]]


def test_the_direction_scores_rows_of_another_job() -> None:
    features, labels = planted(1000, 8, 2.0)
    fitted = probe(features[:600], labels[:600] == 1, options=ProbeOptions(resamples=50, shuffles=0))
    found = transfer(fitted, features[600:], labels[600:] == 1)
    assert found.auroc == pytest.approx(0.92, abs=0.03)
    with pytest.raises(InvalidRequest, match="width 8"):
        transfer(fitted, features[:, :3], labels)
    with pytest.raises(InvalidRequest, match="labels must be False or True"):
        transfer(fitted, features, labels + 5)


def test_auroc_with_ties_and_weights_equals_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 50).astype(float)
    values = generator.integers(0, 6, 50).astype(float)
    weights = generator.integers(0, 4, 50).astype(float)
    expected = sklearn_metrics.roc_auc_score(labels, values, sample_weight=weights)
    assert scores.auroc(labels, values, weights) == pytest.approx(expected)
    assert scores.auroc(np.ones(3), np.arange(3.0)) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [0, 1, 2, 3] * 5}, "two different values; found 4"),
        ({"labels": [0.0, float("nan")] * 10}, "NaN"),
        ({"labels": [0, 1]}, "labels has 2 rows"),
        ({"features": np.zeros(20)}, "must be numbers"),
        ({"features": np.append(np.arange(38.0), [np.inf, 0]).reshape(20, 2)}, "NaN or infinite"),
        ({"groups": [0, 1] * 10}, "5 folds of 2 groups"),
        ({"options": ProbeOptions(c=-1)}, "positive"),
        ({"lengths": np.zeros(3)}, "length has 3 rows"),
    ],
)
def test_unusable_input_is_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"features": np.arange(40.0).reshape(20, 2), "labels": [0, 1] * 10}
    with pytest.raises(InvalidRequest, match=message):
        probe(**given | change)
