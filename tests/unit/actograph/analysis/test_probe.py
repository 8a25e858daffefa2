"""Probes beside a plain scikit-learn script, planted directions, shuffled labels, groups and the command."""

import json
from math import erf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from actograph.analysis.probe import ProbeKind, probe
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
    found = probe(features, labels, kind=kind, resamples=20)
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
    found = probe(features, labels, kind=kind, resamples=200, c=0.1)
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


def test_baselines_read_what_they_are_given() -> None:
    generator = np.random.default_rng(3)
    labels = np.arange(200) % 2
    found = probe(
        generator.normal(size=(200, 4)),
        labels,
        lengths=labels * 3 + generator.normal(size=200),
        texts=[f"word{one % 7} {'yes' if one % 2 else 'no'}" for one in range(200)],
        others={"layer_0": generator.normal(size=(200, 3))},
        resamples=20,
    )
    areas = {name: one["auroc"] for name, one in found.baselines.items()}
    assert set(areas) == {"majority", "length", "bag_of_words", "layer_0", "shuffled_labels"}
    assert areas["majority"] == 0.5
    assert areas["length"] > 0.95
    assert areas["bag_of_words"] == 1.0


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
        ({"labels": [0, 1, 2, 3] * 5}, "two different values; found 4"),
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
    assert main(["probe", str(path), "--folds", "4", "--c", "0.1"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (found["rows"], found["groups"], found["c"]) == (117, 59, [])
    assert found["auroc"] > 0.8
    assert set(found["baselines"]) == {"majority", "length", "shuffled_labels"}
    assert "3 rows without a label are left out" in printed.err
    np.savez(path, labels=labels)
    assert main(["probe", str(path)]) == 1
    assert "no array 'features'" in capsys.readouterr().err


def test_few_groups_may_leave_rows_of_one_label_to_validate_on() -> None:
    labels = np.arange(24) % 2
    features = np.random.default_rng(0).normal(size=(24, 4)) + labels[:, None]
    for seed in (1, 8, 10):
        assert probe(features, labels, folds=2, seed=seed).auroc > 0.8
