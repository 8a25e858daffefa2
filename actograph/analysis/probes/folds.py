"""Grouped folds: rows of one problem never stand on both sides of a split."""

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.errors import InvalidRequest

Integers = NDArray[np.int64]


def group_numbers(groups: Sequence[Hashable] | NDArray[Any]) -> Integers:
    """Number the groups 0, 1, ... in the order of their first rows. Returns [n]."""
    numbers: dict[Hashable, int] = {}
    values = groups.tolist() if isinstance(groups, np.ndarray) else groups
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


def identical_rows(features: NDArray[Any]) -> Integers:
    """Put rows of equal bytes into one group: the default where no groups are given. Returns [n]."""
    rows = (np.ascontiguousarray(row) for row in features)
    return group_numbers([blake2b(row.view(np.uint8).data, digest_size=16).digest() for row in rows])


def grouped_folds(groups: Integers, labels: NDArray[Any], folds: int, seed: int = 0) -> Integers:
    """Assign each row to a fold: whole groups, and both classes spread evenly.

    Groups come in the order of their size, ties in a random order drawn from `seed`. Each goes to the
    fold with the fewest rows of the group's larger class, and of these to the one with the fewest rows.

    Args:
        groups: group number of each row, [n].
        labels: 0 or 1 for each row, [n].

    Returns:
        Fold number of each row, [n].

    Raises:
        InvalidRequest: there are fewer groups than folds, or fewer than two folds.
    """
    count = int(groups.max()) + 1 if len(groups) else 0
    if not 2 <= folds <= count:
        raise InvalidRequest(f"{folds} folds of {count} groups: use at least 2 folds, and as many groups")
    ones = np.bincount(groups, weights=labels, minlength=count).astype(np.int64)
    sizes = np.bincount(groups, minlength=count)
    order = np.lexsort((np.random.default_rng(seed).random(count), -sizes))
    filled = [[0, 0] for _ in range(folds)]
    chosen = np.empty(count, dtype=np.int64)
    for group in order.tolist():
        positive = int(ones[group])
        negative = int(sizes[group]) - positive
        larger = int(positive > negative)
        fold = min(range(folds), key=lambda one: (filled[one][larger], sum(filled[one])))
        filled[fold][0] += negative
        filled[fold][1] += positive
        chosen[group] = fold
    return chosen[groups]
