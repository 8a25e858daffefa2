"""Differences of two sets of activations, problem by problem."""

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.errors import InvalidRequest

Array = NDArray[Any]
Vector = NDArray[np.float64]
#: signs drawn at once
_BLOCK = 256


@dataclass(frozen=True)
class FeatureDifference:
    """One feature: mean difference over problems, and that mean in standard deviations."""

    feature: int
    difference: float
    effect_size: float


@dataclass(frozen=True)
class RowComparison:
    """Second side minus first side at one hook; each problem counts once."""

    pairs: int
    #: problems that only one side has
    unpaired: int
    width: int
    #: mean Euclidean norm of a problem's row
    first_norm: float
    second_norm: float
    #: cosine of the two means, and mean cosine of the problems' rows
    cosine_of_means: float | None
    mean_cosine: float | None
    #: debiased; None for fewer than four problems
    cka: float | None
    #: norm of the mean difference
    difference_norm: float
    #: mean cosine of each problem's difference with the mean difference of the others; about 0 for noise
    consistency: float | None
    #: projection on the mean difference of the other problems: its mean in standard deviations
    effect_size: float | None
    #: sign-flip permutation test of the norm of the mean difference
    p_value: float
    permutations: int
    #: the features with the largest effects
    features: tuple[FeatureDifference, ...]
    mean_difference: Vector = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """JSON object of everything but the vector."""
        found = asdict(self)
        del found["mean_difference"]
        return found


def compare_rows(
    first: Array,
    second: Array,
    first_problems: Sequence[Hashable] | Array,
    second_problems: Sequence[Hashable] | Array,
    *,
    permutations: int = 999,
    top: int = 10,
    seed: int = 0,
) -> RowComparison:
    """Compare rows of two conditions, jobs or models on the problems that both have.

    Rows of one problem are averaged first: repeated runs of a problem are not independent. Under the null
    hypothesis a problem's difference could as well have the other sign, so the test flips signs at random
    (Fisher 1935). Effects are Cohen's d of paired differences.

    `consistency` and `effect_size` compare each difference d_i with the mean of the others (leave-one-out:
    Stone, Cross-validatory choice and assessment of statistical predictions, 1974). With the mean of all,
    which contains d_i, the cosine of independent noise in many dimensions is about 1 / sqrt(pairs) instead
    of 0: noise of 25 problems would have a consistency of 0.2.

    Args:
        first: [n, width].
        second: [m, width].
        first_problems: problem of each row, [n].
        second_problems: problem of each row, [m].

    Raises:
        InvalidRequest: the widths differ, or fewer than two problems are common.
    """
    _require_rows(first, second)
    left, right = _by_problem(first, first_problems), _by_problem(second, second_problems)
    common = [problem for problem in left if problem in right]
    require_common(len(common))
    a, b = (np.stack([side[problem] for problem in common]) for side in (left, right))
    differences = b - a
    mean = differences.mean(axis=0)
    rounding = _rounding(a, b)
    consistency, effect = _leave_one_out(differences, float(np.linalg.norm(rounding)))
    return RowComparison(
        pairs=len(common),
        unpaired=len(left) + len(right) - 2 * len(common),
        width=a.shape[1],
        first_norm=float(np.linalg.norm(a, axis=1).mean()),
        second_norm=float(np.linalg.norm(b, axis=1).mean()),
        cosine_of_means=_mean_cosine(a.mean(axis=0)[None], b.mean(axis=0)[None]),
        mean_cosine=_mean_cosine(a, b),
        cka=linear_cka(a, b),
        difference_norm=float(np.linalg.norm(mean)),
        consistency=consistency,
        effect_size=effect,
        p_value=sign_flip_test(differences, permutations, seed),
        permutations=permutations,
        features=_ranked(mean, _effects(mean, differences.std(axis=0, ddof=1), rounding), top),
        mean_difference=mean,
    )


def compare_sets(
    first: Array,
    second: Array,
    first_groups: Sequence[Hashable] | Array,
    second_groups: Sequence[Hashable] | Array,
    *,
    permutations: int = 999,
    top: int = 10,
    seed: int = 0,
) -> RowComparison:
    """Compare the means of two independent sets of rows, such as two sets of prompts.

    Rows of one group are averaged first. Under the null hypothesis a group could as well belong to the other
    set, so the test draws the sets anew (Fisher 1935). Effects are Cohen's d with the pooled standard
    deviation; along the mean difference it is leave-one-out.

    Args:
        first: [n, width].
        second: [m, width].
        first_groups: group of each row, [n].
        second_groups: group of each row, [m].

    Raises:
        InvalidRequest: the widths differ, or a set has fewer than two groups.
    """
    _require_rows(first, second)
    left, right = _by_problem(first, first_groups), _by_problem(second, second_groups)
    require_sets(len(left), len(right))
    a, b = (np.stack(list(side.values())) for side in (left, right))
    mean = b.mean(axis=0) - a.mean(axis=0)
    rounding = _rounding(a, b)
    effects = _effects(mean, _pooled_deviation(a, b), rounding)
    return RowComparison(
        pairs=0,
        unpaired=len(a) + len(b),
        width=a.shape[1],
        first_norm=float(np.linalg.norm(a, axis=1).mean()),
        second_norm=float(np.linalg.norm(b, axis=1).mean()),
        cosine_of_means=_mean_cosine(a.mean(axis=0)[None], b.mean(axis=0)[None]),
        mean_cosine=None,
        cka=None,
        difference_norm=float(np.linalg.norm(mean)),
        consistency=None,
        effect_size=_effect_apart(a, b, float(np.linalg.norm(rounding))),
        p_value=_label_test(a, b, permutations, seed),
        permutations=permutations,
        features=_ranked(mean, effects, top),
        mean_difference=mean,
    )


def _pooled_deviation(a: Vector, b: Vector) -> Vector:
    squares = sum(np.square(side - side.mean(axis=0)).sum(axis=0) for side in (a, b))
    return np.asarray(np.sqrt(squares / (len(a) + len(b) - 2)))


def _rounding(a: Vector, b: Vector) -> Vector:
    """How far float32 may round each feature, [width]: a smaller spread is no spread of the model's."""
    largest: Vector = np.maximum(np.abs(a).max(axis=0), np.abs(b).max(axis=0))
    return largest * float(np.finfo(np.float32).eps)


def _effects(mean: Vector, spread: Vector, rounding: Vector) -> Vector:
    """Cohen's d of each feature; 0 for one without a spread."""
    return np.divide(mean, spread, out=np.zeros_like(mean), where=spread > rounding)


def _effect_apart(a: Vector, b: Vector, rounding: float) -> float | None:
    """Cohen's d of projections on the difference of the other rows' means; None without a spread."""
    projections = []
    for side, sign, other in ((a, -1, b), (b, 1, a)):
        own = (side.sum(axis=0) - side) / (len(side) - 1)
        directions = sign * (own - other.mean(axis=0))
        lengths = np.linalg.norm(directions, axis=1)
        if not (lengths > 0).all():
            return None
        projections.append(((side * directions).sum(axis=1) / lengths)[:, None])
    low, high = projections
    spread = float(_pooled_deviation(low, high)[0])
    return float(high.mean() - low.mean()) / spread if spread > rounding else None


def _label_test(a: Vector, b: Vector, permutations: int, seed: int) -> float:
    """p-value of the norm of the difference of means: (1 + as large ones) / (1 + permutations)."""
    rows = np.concatenate([a, b])
    # centred, the squared norm of a weighted sum needs the products of the rows alone
    rows -= rows.mean(axis=0)
    products = rows @ rows.T
    weights = np.concatenate([np.full(len(a), -1 / len(a)), np.full(len(b), 1 / len(b))])
    observed = float(weights @ products @ weights)
    generator = np.random.default_rng(seed)
    drawn = (generator.permutation(weights) for _ in range(permutations))
    reached = sum(float(one @ products @ one) >= observed * (1 - 1e-12) for one in drawn)
    return (1 + reached) / (1 + permutations)


def require_common(problems: int) -> None:
    """Raises InvalidRequest if the two sides have too few problems in common."""
    if problems < 2:
        raise InvalidRequest(
            f"{problems} problems are common to both sides; a comparison needs 2. Name groups that both "
            "sides have, or compare the means of two independent sets (paired: false)",
            param="groups",
        )


def require_sets(first: int, second: int) -> None:
    """Raises InvalidRequest if a set has too few groups."""
    if min(first, second) < 2:
        raise InvalidRequest(f"the sets have {first} and {second} groups; each needs 2", param="groups")


def _require_rows(first: Array, second: Array) -> None:
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[1]:
        raise InvalidRequest(f"rows of shapes {first.shape} and {second.shape} cannot be compared")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise InvalidRequest("rows contain NaN or infinite values")


def linear_cka(x: Array, y: Array) -> float | None:
    """Debiased linear CKA of [n, width of x] and [n, width of y]; None for n < 4, or if a side is constant.

    It is 1 for equal geometry, and about 0 for independent rows however wide they are, also below 0.
    Sources: Kornblith et al., Similarity of neural network representations revisited (2019), section 3; the
    unbiased HSIC of Song et al., Feature selection via dependence maximization (2012), equation 5; their
    quotient as in Nguyen et al., Do wide and deep networks learn the same things? (2021).
    """
    if len(x) < 4:
        return None
    # the estimate does not depend on the means, and centred rows round less
    x, y = (side.astype(np.float64) - side.mean(axis=0, dtype=np.float64) for side in (x, y))
    both, of_x, of_y = _unbiased_hsic(x, y), _unbiased_hsic(x, x), _unbiased_hsic(y, y)
    # constant rows leave rounding alone
    least = 1e-12 * max(np.abs(x).max(), np.abs(y).max()) ** 4
    return float(both / np.sqrt(of_x * of_y)) if min(of_x, of_y) > least else None


def _unbiased_hsic(x: Vector, y: Vector) -> float:
    """Unbiased HSIC of linear kernels K, L without their diagonals, times n (n - 3).

    The product of the kernels is summed over the smaller of the matrices: K and L, or x'y.
    """
    n = len(x)
    squares = [np.square(side).sum(axis=1) for side in (x, y)]
    # sums of the rows of K and L
    sums = [side @ side.sum(axis=0) - square for side, square in zip((x, y), squares, strict=True)]
    if n * n <= x.shape[1] * y.shape[1]:
        products = float(((x @ x.T) * (y @ y.T)).sum())
    else:
        products = float(np.square(x.T @ y).sum())
    products -= float(squares[0] @ squares[1])
    middle = float(sums[0].sum() * sums[1].sum()) / ((n - 1) * (n - 2))
    return products + middle - 2 * float(sums[0] @ sums[1]) / (n - 2)


def sign_flip_test(differences: Vector, permutations: int, seed: int = 0) -> float:
    """p-value of the norm of the mean difference: (1 + as large ones) / (1 + permutations).

    Args:
        differences: one row per problem, [pairs, width].
    """
    # all that the norms need are the products of the problems' differences
    products = differences @ differences.T
    observed = float(products.sum())
    generator = np.random.default_rng(seed)
    reached = 0
    for start in range(0, permutations, _BLOCK):
        count = min(_BLOCK, permutations - start)
        signs = generator.integers(0, 2, (count, len(differences))) * 2.0 - 1
        squares = ((signs @ products) * signs).sum(axis=1)
        reached += int((squares >= observed * (1 - 1e-12)).sum())
    return (1 + reached) / (1 + permutations)


def _by_problem(rows: Array, problems: Sequence[Hashable] | Array) -> dict[Hashable, Vector]:
    """Mean row of each problem."""
    names = problems.tolist() if isinstance(problems, np.ndarray) else list(problems)
    if len(names) != len(rows):
        raise InvalidRequest(f"{len(names)} problems for {len(rows)} rows")
    numbers: dict[Hashable, list[int]] = {}
    for row, problem in enumerate(names):
        numbers.setdefault(problem, []).append(row)
    return {problem: rows[found].astype(np.float64).mean(axis=0) for problem, found in numbers.items()}


def _mean_cosine(a: Vector, b: Vector) -> float | None:
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    kept = lengths > 0
    return float(((a * b).sum(axis=1)[kept] / lengths[kept]).mean()) if kept.any() else None


def _leave_one_out(differences: Vector, rounding: float) -> tuple[float | None, float | None]:
    others = (differences.sum(axis=0) - differences) / (len(differences) - 1)
    lengths = np.linalg.norm(others, axis=1)
    if not (lengths > 0).all():
        return None, None
    projections = (differences * others).sum(axis=1) / lengths
    spread = float(projections.std(ddof=1))
    effect = float(projections.mean()) / spread if spread > rounding else None
    return _mean_cosine(differences, others), effect


def _ranked(mean: Vector, effects: Vector, top: int) -> tuple[FeatureDifference, ...]:
    order = np.argsort(-np.abs(effects), kind="stable")[:top]
    return tuple(FeatureDifference(int(one), float(mean[one]), float(effects[one])) for one in order)
