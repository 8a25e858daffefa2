"""McNemar's test and the bootstrap, against scipy and by their properties."""

import numpy as np
import pytest
from scipy import stats

from actograph.statistics import paired


def test_mcnemar_is_the_exact_binomial_test(subtests: pytest.Subtests) -> None:
    for first, second in [(0, 0), (1, 0), (3, 9), (25, 4), (10, 10), (0, 40), (700, 901)]:
        with subtests.test(first=first, second=second):
            expected = (
                1.0
                if first + second == 0
                else stats.binomtest(min(first, second), first + second, 0.5).pvalue
            )
            assert paired.mcnemar(first, second) == pytest.approx(expected, rel=1e-9)
            assert paired.mcnemar(second, first) == paired.mcnemar(first, second)


def test_mcnemar_holds_where_powers_of_a_half_underflow() -> None:
    assert paired.mcnemar(5000, 5100) == pytest.approx(stats.binomtest(5000, 10_100, 0.5).pvalue, rel=1e-6)


def test_epochs_of_a_problem_are_averaged_before_anything_is_drawn() -> None:
    means = paired.per_problem([1.0, 0.0, -1.0, 1.0], ["a", "b", "a", "b"])
    assert means.tolist() == [0.0, 0.5]


def test_bootstrap_agrees_with_scipy() -> None:
    values = np.random.default_rng(3).choice([-1.0, 0.0, 1.0], size=200, p=[0.1, 0.6, 0.3])
    ours = paired.bootstrap_interval(values, resamples=9999)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=9999, method="percentile", rng=np.random.default_rng(8)
    ).confidence_interval
    assert ours is not None
    # both are Monte Carlo estimates of the same quantiles: some hundredths of their width apart
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.06 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.06 * width)


def test_bootstrap_is_repeatable_and_shifts_with_the_values() -> None:
    values = np.random.default_rng(0).normal(size=50)
    first, again = (paired.bootstrap_interval(values, seed=4) for _ in range(2))
    moved = paired.bootstrap_interval(values + 2.0, seed=4)
    assert first is not None and moved is not None
    assert first == again
    assert moved.low == pytest.approx(first.low + 2.0)
    assert paired.bootstrap_interval(values, seed=5) != first


def test_bootstrap_of_many_problems_is_drawn_in_pieces_like_few(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(10.0)
    whole = paired.bootstrap_interval(values)
    monkeypatch.setattr(paired, "_DRAWN_AT_ONCE", 7)
    assert paired.bootstrap_interval(values) == whole


def test_one_problem_has_no_interval() -> None:
    assert paired.bootstrap_interval([1.0]) is None
