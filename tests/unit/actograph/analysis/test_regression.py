"""Regressions of numbers beside a plain scikit-learn script, planted numbers, noise and groups."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from actograph.analysis.regression import regression
from actograph.contract.errors import InvalidRequest


def planted(rows: int, width: int, noise: float) -> tuple[Any, Any]:
    """Numbers that one feature tells up to a noise."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(rows, width)) * np.geomspace(0.01, 100, width) + 50
    clean = (features[:, 1] - features[:, 1].mean()) / features[:, 1].std()
    return features, 10 + 3 * (clean + noise * generator.normal(size=rows))


def test_numbers_equal_those_of_a_plain_script() -> None:
    features, numbers = planted(150, 8, 0.5)
    problems = np.arange(150) // 3
    found = regression(features, numbers, problems, resamples=50, shuffles=1)
    assert all(len(set(found.fold_of[problems == one])) == 1 for one in range(50))
    errors, around, ranks = 0.0, 0.0, []
    for fold, c in enumerate(found.chosen_c):
        inside = found.fold_of == fold
        model = make_pipeline(StandardScaler(), Ridge(1 / (2 * c))).fit(features[~inside], numbers[~inside])
        given = model.predict(features[inside])
        np.testing.assert_allclose(given, found.predictions[inside])
        errors += np.square(numbers[inside] - given).sum()
        around += np.square(numbers[inside] - numbers[~inside].mean()).sum()
        ranks.append(spearmanr(numbers[inside], given).statistic)
    assert found.scores.r2 == pytest.approx(1 - errors / around)
    assert found.scores.spearman == pytest.approx(np.mean(ranks))
    low, high = found.scores.r2_interval
    assert low < 0.8 < high, "the share of the variance that is not noise"
    assert np.corrcoef(features @ found.weights + found.bias, numbers)[0, 1] ** 2 > 0.75
    assert (features @ found.weights + found.bias).mean() == pytest.approx(numbers.mean())


def test_noise_is_not_learnt_and_baselines_read_what_they_are_given() -> None:
    generator = np.random.default_rng(3)
    numbers = np.arange(120) % 6
    found = regression(
        generator.normal(size=(120, 4)),
        numbers,
        lengths=numbers * 3 + generator.normal(size=120),
        texts=[f"word{one}" for one in numbers],
        others={"layer_0": generator.normal(size=(120, 3))},
        resamples=50,
    )
    assert found.scores.r2 < 0.1
    assert found.p_value is not None
    assert found.p_value > 0.1
    r2s = {name: one["r2"] for name, one in found.baselines.items()}
    assert set(r2s) == {"mean", "length", "bag_of_words", "layer_0", "shuffled_labels"}
    assert r2s["mean"] == 0.0
    assert r2s["length"] > 0.8
    assert r2s["bag_of_words"] > 0.5
    assert r2s["shuffled_labels"] < 0.1
    assert found.baselines["mean"]["spearman"] == 0.0


def test_unusable_input_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"labels": [0, 1] * 10}, "classes; use a probe"),
        ({"labels": ["a", "b", "c", "d"] * 5}, "two different values; found 4"),
        ({"labels": [1] * 20}, "found 1: 1"),
        ({"labels": [0.0, 1, 2, float("nan")] * 5}, "NaN"),
        ({"labels": [0, 1, 2]}, "labels has 3 rows"),
        ({"groups": [0, 1] * 10}, "5 folds, and 2 groups: choose 2 to 2 folds"),
        ({"groups": [0, 1] * 10, "folds": 2}, "only one group is among the training rows"),
        ({"c": -1}, "positive"),
        ({"lengths": np.zeros(3)}, "length has 3 rows"),
    ]
    for change, message in cases:
        given: dict[str, Any] = {"features": np.arange(40.0).reshape(20, 2), "labels": np.arange(20)}
        with subtests.test(message), pytest.raises(InvalidRequest, match=message):
            regression(**given | change)
