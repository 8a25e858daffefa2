"""McNemar's test and the bootstrap, against scipy and by their properties."""

import numpy as np
import pytest
from scipy import stats

from evals.statistics import paired


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


def test_one_problem_has_no_interval() -> None:
    assert paired.bootstrap_interval([1.0]) is None
