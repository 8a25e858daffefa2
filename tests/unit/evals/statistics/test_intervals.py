"""95 % intervals of means, against scipy's."""

import pytest
from scipy.stats import binomtest

from evals.statistics.metrics import interval


def test_verdicts_have_the_interval_of_wilson(subtests: pytest.Subtests) -> None:
    for right, count in ((0, 12), (1, 12), (6, 12), (12, 12), (1, 1), (0, 1), (499, 500)):
        with subtests.test(right=right, count=count):
            found = interval([1.0] * right + [0.0] * (count - right))
            # 1.96 is rounded
            expected = binomtest(right, count).proportion_ci(0.95, method="wilson")
            assert found == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_means_from_0_to_1_stay_there_and_have_a_width() -> None:
    low, high = interval([0.0, 0.0, 0.0, 0.25]) or (0, 0)
    assert 0 < low < 0.0625 < high < 1
    wide = interval([0.0, 0.0, 0.0, 1.0]) or (0, 0)
    assert high - low < wide[1] - wide[0], "they vary less than verdicts"
    assert interval([0.5] * 4) == pytest.approx(interval([0.0, 1.0] * 2))


def test_other_means_have_their_standard_errors() -> None:
    assert interval([10.0, 20.0, 30.0]) == pytest.approx((20 - 1.96 * 10 / 3**0.5, 20 + 1.96 * 10 / 3**0.5))
    assert interval([10.0]) is None
    assert interval([0.5]) is None
    assert interval([]) is None
