"""Probes beside a plain scikit-learn script, planted directions, shuffled labels, groups and the command."""

import json
from contextlib import suppress
from math import erf, sqrt
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info, threadpool_limits

from actograph.analysis import blas_threads
from actograph.analysis.probe import corrected_p_values, probe, shuffle_groups
from actograph.analysis.probe_fit import ProbeKind, platt
from actograph.analysis.regression import regression
from actograph.cli.main import main
from actograph.contract.errors import InvalidRequest

Array = NDArray[Any]


def planted(rows: int, width: int, distance: float, seed: int = 0) -> tuple[Array, Array]:
    """Two normal classes whose means lie `distance` standard deviations apart."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, rows)
    direction = generator.normal(size=width)
    direction /= np.linalg.norm(direction)
    return generator.normal(size=(rows, width)) + np.outer(labels - 0.5, direction * distance), labels


@pytest.mark.parametrize("kind", ["logistic", "ridge"])
def test_numbers_equal_those_of_a_plain_script(kind: ProbeKind) -> None:
    features, labels = planted(300, 24, 1.5)
    features = features * np.geomspace(0.01, 100, 24) + 50
    found = probe(features, labels, kind=kind, resamples=20, shuffles=1)
    areas = []
    for fold, c in enumerate(found.chosen_c):
        inside = found.fold_of == fold
        last = LogisticRegression(C=c, max_iter=2000) if kind == "logistic" else RidgeClassifier(1 / (2 * c))
        model = make_pipeline(StandardScaler(), last).fit(features[~inside], labels[~inside])
        areas.append(roc_auc_score(labels[inside], model.decision_function(features[inside])))
        if kind == "logistic":
            np.testing.assert_allclose(model.predict_proba(features[inside])[:, 1], found.chances[inside])
    assert found.auroc == pytest.approx(float(np.mean(areas)), abs=1e-9)
    assert found.scores.brier == pytest.approx(brier_score_loss(labels, found.chances))
    assert found.scores.log_loss == pytest.approx(log_loss(labels, found.chances))


@pytest.mark.parametrize("kind", ["logistic", "ridge", "mean_difference"])
def test_a_planted_direction_is_read_at_its_bayes_rates(kind: ProbeKind) -> None:
    distance = 2.0
    features, labels = planted(2000, 16, distance)
    found = probe(features, labels, kind=kind, resamples=200, c=0.1, shuffles=1)
    low, high = found.scores.accuracy_interval
    assert low <= 0.5 * (1 + erf(distance / 2 / sqrt(2))) <= high
    low, high = found.auroc_interval
    assert low <= 0.5 * (1 + erf(distance / 2)) <= high
    assert found.scores.calibration_error < 0.05
    # the direction of all rows, as one vector, is the probe
    assert roc_auc_score(labels, features @ found.direction.weights) == pytest.approx(found.auroc, abs=0.02)


def test_labels_that_follow_the_group_alone_are_not_learnt() -> None:
    """Random labels of duplicated rows are learnt by heart if the duplicates are split."""
    generator = np.random.default_rng(0)
    problems = np.repeat(np.arange(60), 5)
    features = generator.normal(size=(60, 200))[problems] + generator.normal(size=(300, 200)) * 0.01
    labels = generator.integers(0, 2, 60)[problems]
    grouped = probe(features, labels, problems, resamples=200, c=0.1)
    split = probe(features, labels, np.arange(300), resamples=20, c=0.1)
    assert all(len(np.unique(grouped.fold_of[problems == one])) == 1 for one in range(60))
    assert split.auroc > 0.95
    low, high = grouped.auroc_interval
    assert low <= 0.5 <= high


@pytest.mark.parametrize("kind", ["ridge", "mean_difference"])
def test_calibration_holds_where_training_rows_can_be_told_apart(kind: ProbeKind) -> None:
    """With more features than rows, the scores of training rows say nothing of held-out ones."""
    for distance, most in ((0.0, 0.75), (3.0, 0.69)):
        features, labels = planted(100, 600, distance)
        found = probe(features, labels, kind=kind, resamples=10, shuffles=1)
        assert found.scores.log_loss < most
        given = found.direction.chances(features)
        assert roc_auc_score(labels, given) > 0.99


def test_platt_scaling_is_that_of_scikit_learn() -> None:
    features, labels = planted(200, 1, 1.5)
    model = LogisticRegression().fit(features, labels)
    due = CalibratedClassifierCV(FrozenEstimator(model), method="sigmoid", cv=2, ensemble=False)
    scores = model.decision_function(features)
    slope, offset = platt(scores, labels)
    expected = due.fit(features, labels).predict_proba(features)[:, 1]
    np.testing.assert_allclose(expit(slope * scores + offset), expected, atol=1e-3)
    slope, offset = platt(-scores, labels)
    assert slope > 0, "the order of the scores stays"
    assert expit(offset) == pytest.approx(labels.mean(), abs=0.02)


def test_labels_are_shuffled_by_group() -> None:
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 5, 50)
    of_group = np.repeat(np.arange(50), sizes)
    order = generator.permutation(len(of_group))
    of_group, labels = of_group[order], generator.integers(0, 2, 50)[of_group][order]
    found = shuffle_groups(labels, of_group, generator)
    assert all(len(set(found[of_group == group])) == 1 for group in range(50))
    assert (found != labels).any()
    mixed, alike = np.tile([0, 0, 1], 30), np.repeat(np.arange(30), 3)
    again = shuffle_groups(mixed, alike, generator)
    assert (again.reshape(30, 3).sum(axis=1) == 1).all()


def test_the_best_of_many_probes_of_noise_is_not_significant() -> None:
    generator = np.random.default_rng(2)
    labels = np.arange(60) % 2
    noise = [
        probe(generator.normal(size=(60, 4)), labels, np.arange(60), c=1.0, folds=2, resamples=1)
        for _ in range(12)
    ]
    corrected = corrected_p_values({str(n): (one.auroc, one.shuffled_aurocs) for n, one in enumerate(noise)})
    assert min(one.p_value or 0 for one in noise) <= 0.1
    assert min(corrected.values()) > 0.2
    features, labels = planted(60, 4, 3.0)
    found = probe(features, labels, c=1.0, folds=2, resamples=1)
    assert found.p_value == 0.05
    assert 0.4 < found.baselines["shuffled_labels"]["auroc"] < 0.6
    assert len(found.shuffled_aurocs) == 19
    by_hand = {"a": (0.9, [0.5, 0.6, 0.7]), "b": (0.65, [0.8, 0.4, 0.5])}
    assert corrected_p_values(by_hand) == {"a": 0.25, "b": 0.75}


def test_an_interval_below_chance_is_remarked() -> None:
    """Pairs of related rows with opposite labels, split over the folds, or kept together."""
    generator = np.random.default_rng(1)
    pairs = np.repeat(np.arange(50), 2)
    labels = np.arange(100) % 2
    features = generator.normal(size=(50, 120))[pairs] + generator.normal(size=(100, 120)) * 0.3
    split = probe(features, labels, np.arange(100), c=1.0, resamples=100, shuffles=1)
    assert split.auroc_interval[1] < 0.5
    assert "the AUROC of the probe lies below chance" in split.warnings[0]
    together = probe(features, labels, pairs, c=1.0, resamples=100, shuffles=1)
    assert together.auroc > split.auroc
    assert together.warnings == ()


def test_too_few_groups_are_refused_with_the_reason(subtests: pytest.Subtests) -> None:
    """Training rows or test rows of a fold have one label alone."""
    generator = np.random.default_rng(0)
    few = np.array([1, 1, *[0] * 20])
    for kind in get_args(ProbeKind):
        with subtests.test(kind), pytest.raises(InvalidRequest, match="a label has only 1 groups"):
            probe(generator.normal(size=(22, 3)), few, np.arange(22), kind=kind, folds=2)
    given = probe(generator.normal(size=(22, 3)), few, np.arange(22), c=1.0, folds=2, resamples=50)
    assert 0 <= given.auroc <= 1
    for seed in range(6):
        counts = generator.integers(2, 5, 2)
        labels = np.repeat([0, 1], counts)
        for kind in get_args(ProbeKind):
            with subtests.test(kind=kind, seed=seed), suppress(InvalidRequest):
                probe(
                    generator.normal(size=(len(labels), 3)), labels, np.arange(len(labels)),
                    kind=kind, folds=2, resamples=20, seed=seed,
                )  # fmt: skip


def test_baselines_read_what_they_are_given() -> None:
    generator = np.random.default_rng(3)
    labels = np.arange(200) % 2
    found = probe(
        generator.normal(size=(200, 4)),
        labels,
        lengths=labels * 3 + generator.normal(size=200),
        texts=[f"word{one % 7} {'yes' if one % 2 else 'no'}" for one in range(200)],
        others={"layer_0": generator.normal(size=(200, 3)), "prompts": ["", "a b"] * 100},
        resamples=20,
    )
    areas = {name: one["auroc"] for name, one in found.baselines.items()}
    assert set(areas) == {"majority", "length", "bag_of_words", "layer_0", "prompts", "shuffled_labels"}
    assert areas["majority"] == 0.5
    assert areas["length"] > 0.95
    assert areas["bag_of_words"] == areas["prompts"] == 1.0


def test_the_direction_scores_rows_of_another_job() -> None:
    features, labels = planted(1000, 8, 2.0)
    fitted = probe(features[:600], labels[:600] == 1, resamples=20)
    assert fitted.transfer(features[600:], labels[600:] == 1).auroc == pytest.approx(0.92, abs=0.03)
    with pytest.raises(InvalidRequest, match="width 8"):
        fitted.transfer(features[:, :3], labels)
    with pytest.raises(InvalidRequest, match="labels must be False or True"):
        fitted.transfer(features, labels + 5)


def test_unusable_input_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"labels": [0, 1, 2, 3] * 5}, "two different values, or use ridge, which predicts numbers; found 4"),
        ({"labels": [0.0, float("nan")] * 10}, "NaN"),
        ({"labels": [0, 1]}, "labels has 2 rows"),
        ({"features": np.zeros(20)}, "must be numbers"),
        ({"features": np.append(np.arange(38.0), [np.inf, 0]).reshape(20, 2)}, "NaN or infinite"),
        ({"groups": [0, 1] * 10}, "5 folds, and a class with 1 groups"),
        ({"c": -1}, "positive"),
        ({"kind": "svm"}, "unknown probe"),
        ({"lengths": np.zeros(3)}, "length has 3 rows"),
    ]
    for change, message in cases:
        given: dict[str, Any] = {"features": np.arange(40.0).reshape(20, 2), "labels": [0, 1] * 10}
        with subtests.test(message), pytest.raises(InvalidRequest, match=message):
            probe(**given | change)


def test_the_command_prints_scores_and_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features, labels = planted(120, 6, 2.0)
    path = tmp_path / "matrix.npz"
    given = np.where(np.arange(120) < 3, np.nan, labels)
    np.savez(path, features=features, labels=given, groups=np.arange(120) // 2, lengths=np.arange(120))
    assert main(["analyse", "probe", str(path), "--folds", "4", "--c", "0.1"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (found["rows"], found["groups"], found["c"]) == (117, 59, [])
    assert found["auroc"] > 0.8
    assert set(found["baselines"]) == {"majority", "length", "shuffled_labels"}
    assert "3 rows without a label are left out" in printed.err
    np.savez(path, features=features, labels=np.where(labels, "a", "b"), groups=np.arange(120) // 3)
    assert main(["analyse", "probe", str(path), "--folds", "2", "--c", "0.1", "--shuffles", "0"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["groups"], found["p_value"], found["shuffled_aurocs"]) == (40, None, [])
    np.savez(path, features=features, labels=features[:, 0], groups=np.arange(120) // 2)
    assert main(["analyse", "probe", str(path), "--method", "ridge", "--shuffles", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["r2"] > 0.9
    np.savez(path, labels=labels)
    assert main(["analyse", "probe", str(path)]) == 1
    assert "no array 'features'" in capsys.readouterr().err


def test_few_groups_may_leave_rows_of_one_label_to_validate_on() -> None:
    labels = np.arange(24) % 2
    features = np.random.default_rng(0).normal(size=(24, 4)) + labels[:, None]
    for seed in (1, 8, 10):
        assert probe(features, labels, folds=2, seed=seed).auroc > 0.8


def test_small_fits_use_one_thread_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads wait for each other in loops."""
    seen: list[set[int]] = []

    @blas_threads.one_if_small
    def fit(features: Array) -> None:
        seen.append({one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"})

    with threadpool_limits(limits=2, user_api="blas"):
        fit(np.zeros((4, 4)))
        monkeypatch.setattr(blas_threads, "SHARED_NUMBERS", 16)
        fit(features=np.zeros((4, 4)))
        fit(features=np.zeros((3, 5)))
    assert seen == [{1}, {2}, {1}]
    assert all(hasattr(one, "__wrapped__") for one in (probe, regression)), "both are limited"
