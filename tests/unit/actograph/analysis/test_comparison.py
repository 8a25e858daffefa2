"""Comparisons beside numpy, on planted shifts and on noise."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actograph.analysis.comparison import compare_rows, compare_sets, linear_cka, sign_flip_test
from actograph.contract.errors import InvalidRequest

Array = NDArray[Any]


def noise(rows: int, width: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=(rows, width))


def test_cka_is_one_after_a_rotation_and_none_for_a_constant() -> None:
    x = noise(50, 4, 0)
    rotation = np.linalg.qr(noise(4, 4, 1))[0]
    assert linear_cka(x, 2 * x @ rotation + 1) == pytest.approx(1)
    assert linear_cka(x, np.zeros_like(x)) is None
    assert linear_cka(x, np.full_like(x, 0.1)) is None
    assert linear_cka(x[:3], x[:3]) is None


@pytest.mark.parametrize("widths", [(4, 3), (90, 80), (4, 200)])
def test_cka_is_the_quotient_of_unbiased_estimates(widths: tuple[int, int]) -> None:
    """By the kernels, as Song et al. 2012 have it, of rows that depend on each other."""
    x, y = noise(20, widths[0], 2) + 3, noise(20, widths[1], 3) - 1
    y[:, :3] += 2 * x[:, :3]

    def hsic(a: Array, b: Array) -> float:
        k, m = (side @ side.T * (1 - np.eye(20)) for side in (a, b))
        whole = np.trace(k @ m) + k.sum() * m.sum() / (19 * 18) - 2 * (k @ m).sum() / 18
        return float(whole / (20 * 17))

    due = hsic(x, y) / np.sqrt(hsic(x, x) * hsic(y, y))
    assert linear_cka(x, y) == pytest.approx(due)
    assert linear_cka(x.astype(np.float32), y.astype(np.float32)) == pytest.approx(due, rel=1e-4)


def test_cka_of_independent_rows_is_about_zero_however_wide_they_are() -> None:
    for width in (5, 50, 2000):
        found = [linear_cka(noise(40, width, seed), noise(40, width, seed + 100)) for seed in range(8)]
        assert abs(np.mean([one for one in found if one is not None])) < 0.05


def test_a_planted_shift_is_found_with_its_size() -> None:
    first, change = noise(200, 12, 0), noise(200, 12, 1)
    change[:, 4] += 2
    found = compare_rows(first, first + change, np.arange(200), np.arange(200))
    assert found.pairs == 200
    assert found.p_value == 0.001
    assert found.effect_size == pytest.approx(2, abs=0.3)
    assert found.features[0].feature == 4
    assert found.features[0].effect_size == pytest.approx(change[:, 4].mean() / change[:, 4].std(ddof=1))
    assert found.difference_norm == pytest.approx(np.linalg.norm(change.mean(axis=0)))
    assert found.first_norm == pytest.approx(np.linalg.norm(first, axis=1).mean())
    assert found.cka == linear_cka(first, first + change)


def test_consistency_is_about_zero_for_noise_and_one_for_a_common_shift() -> None:
    """The cosine with a mean that contains the difference itself would be 0.2 for 25 problems of noise."""
    problems, rows = np.arange(25), np.zeros((25, 2000))
    found = [compare_rows(rows, noise(25, 2000, seed), problems, problems, permutations=1) for seed in (0, 1)]
    assert all(abs(one.consistency or 1) < 0.03 for one in found)
    shifted = compare_rows(rows, 1 + 1e-3 * noise(25, 2000, 2), problems, problems, permutations=1)
    assert shifted.consistency == pytest.approx(1, abs=1e-4)


def test_one_vector_added_to_every_row_has_no_effect_size() -> None:
    """Its spread is the rounding of float32 alone, as where a steered hook is compared with itself."""
    generator = np.random.default_rng(0)
    rows = (30 * generator.normal(size=(60, 64))).astype(np.float32)
    steered = rows + generator.normal(size=64).astype(np.float32)
    names = np.arange(60)
    found = compare_rows(rows, steered, names, names)
    assert found.effect_size is None
    assert found.consistency == pytest.approx(1)
    assert all(one.effect_size == 0 for one in found.features)
    apart = compare_sets(rows[:1].repeat(5, 0), steered[:1].repeat(5, 0), range(5), range(5))
    assert apart.effect_size is None


def test_the_p_value_equals_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    differences = noise(10, 1, 3) + 0.5
    exact = stats.permutation_test(
        (differences[:, 0],), lambda x: abs(x.mean()), permutation_type="samples", n_resamples=np.inf,
        alternative="greater", vectorized=False,
    ).pvalue  # fmt: skip
    assert sign_flip_test(differences, 20_000) == pytest.approx(exact, abs=0.01)


def test_epochs_are_averaged_and_problems_paired_by_name() -> None:
    first = np.array([[1.0, 0], [3, 0], [5, 5], [9, 9]])
    second = np.array([[0.0, 1], [2, 2]])
    found = compare_rows(first, second, ["a", "a", "b", "only"], ["b", "a"], permutations=9)
    assert (found.pairs, found.unpaired) == (2, 1)
    assert found.mean_difference.tolist() == [((2 - 2) + (0 - 5)) / 2, ((2 - 0) + (1 - 5)) / 2]
    assert "mean_difference" not in found.as_json()


def test_what_cannot_be_paired_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="cannot be compared"):
        compare_rows(np.zeros((3, 2)), np.zeros((3, 4)), [1, 2, 3], [1, 2, 3])
    with pytest.raises(InvalidRequest, match="1 problems are common"):
        compare_rows(np.zeros((2, 2)), np.zeros((2, 2)), [1, 2], [2, 3])
    with pytest.raises(InvalidRequest, match="3 problems for 2 rows"):
        compare_rows(np.zeros((2, 2)), np.zeros((2, 2)), [1, 2, 3], [2, 3])


def test_two_independent_sets_are_compared_by_their_means(subtests: pytest.Subtests) -> None:
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=(40, 6)), generator.normal(size=(50, 6))
    second[:, 2] += 1.5
    found = compare_sets(first, second, range(40), [f"b{n}" for n in range(50)], permutations=199)
    np.testing.assert_allclose(found.mean_difference, second.mean(axis=0) - first.mean(axis=0))
    assert (found.pairs, found.unpaired, found.p_value) == (0, 90, 0.005)
    assert found.features[0].feature == 2
    assert found.features[0].effect_size == pytest.approx(1.5, abs=0.35)
    assert found.effect_size == pytest.approx(1.5, abs=0.4)
    twice = compare_sets(
        np.repeat(first, 2, axis=0), second, np.repeat(np.arange(40), 2), range(50), permutations=199
    )
    np.testing.assert_allclose(twice.mean_difference, found.mean_difference)
    assert (twice.unpaired, twice.p_value) == (90, 0.005), "rows of a group count once"
    noise = [
        compare_sets(*generator.normal(size=(2, 20, 60)), range(20), range(20), permutations=99, seed=seed)
        for seed in range(12)
    ]
    assert min(one.p_value for one in noise) > 0.01
    assert abs(float(np.mean([one.effect_size or 0.0 for one in noise]))) < 0.3
    for rows, says in [(first[:1], "1 and 50 groups"), (first[:, :2], "cannot be compared")]:
        with subtests.test(says), pytest.raises(InvalidRequest, match=says):
            compare_sets(rows, second, range(len(rows)), range(50))
