"""Means and standard errors; expected values computed with lm-eval 0.4.13's mean and mean_stderr."""

import pytest

from actograph.contract.resources import Score
from actograph.statistics.metrics import shown
from actograph.statistics.moments import Moments


def samples(*values: float, key: str = "exact_match,strict-match") -> list[dict[str, Score]]:
    return [{key: Score(value=value)} for value in values]


def aggregate(scores: list[dict[str, Score]]) -> dict[str, float | None]:
    return shown({key: Moments(sample[key].value for sample in scores) for key in scores[0]})


def test_mean_and_standard_error_under_lm_evals_keys() -> None:
    metrics = aggregate(samples(1, 0, 0, 1, 1))
    assert list(metrics) == ["exact_match,strict-match", "exact_match_stderr,strict-match"]
    assert metrics["exact_match,strict-match"] == pytest.approx(0.6, abs=1e-15)
    assert metrics["exact_match_stderr,strict-match"] == pytest.approx(0.24494897427831783, abs=1e-15)


def test_a_whole_run() -> None:
    metrics = aggregate(samples(*[1.0] * 400, *[0.0] * 919))
    assert metrics["exact_match,strict-match"] == pytest.approx(0.3032600454890068, abs=1e-15)
    assert metrics["exact_match_stderr,strict-match"] == pytest.approx(0.012661502663418695, abs=1e-15)


def test_every_scorer_has_its_own_entries() -> None:
    metrics = aggregate(
        [
            {"exact_match,strict-match": Score(value=0), "exact_match,flexible-extract": Score(value=1)},
            {"exact_match,strict-match": Score(value=0), "exact_match,flexible-extract": Score(value=0)},
        ]
    )
    assert metrics == {
        "exact_match,strict-match": 0.0,
        "exact_match_stderr,strict-match": 0.0,
        "exact_match,flexible-extract": 0.5,
        "exact_match_stderr,flexible-extract": 0.5,
    }


def test_one_sample_has_no_standard_error() -> None:
    assert aggregate(samples(1))["exact_match_stderr,strict-match"] is None
