"""Rows in the order of their folds: training sets are slices, so that no split copies the matrix."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.analysis.probes.folds import Integers
from actograph.contract.errors import InvalidRequest

Floats = NDArray[np.floating[Any]]
_BLOCK = 8192


@dataclass
class FoldedRows:
    """Features and labels, sorted by fold and centred and scaled once by all rows.

    The common centre keeps products in float32 exact enough for features with a large mean. It does not
    leak between folds: each fold's own standardisation is an affine map of it.
    """

    features: Floats
    labels: NDArray[np.float64]
    #: row of the caller for each row here, [n]
    order: Integers
    bounds: list[tuple[int, int]]
    mean: Floats
    scale: Floats

    @property
    def folds(self) -> int:
        return len(self.bounds)

    def slices(self, folds: Iterable[int]) -> list[slice]:
        """Return neighbouring folds as one slice each."""
        found: list[slice] = []
        for start, stop in (self.bounds[fold] for fold in sorted(folds)):
            if found and found[-1].stop == start:
                found[-1] = slice(found[-1].start, stop)
            else:
                found.append(slice(start, stop))
        return found

    def relabelled(self, labels: NDArray[np.float64]) -> "FoldedRows":
        """Return the same rows under other labels, [n] in the caller's order; features are shared."""
        found = replace(self, labels=labels[self.order].astype(np.float64))
        found.__dict__["grams"] = self.grams
        return found

    @cached_property
    def grams(self) -> list[NDArray[np.float32] | NDArray[np.float64]]:
        """Second moments of each fold, [width, width]: those of a training set are sums of them."""
        return [self.features[a:b].T @ self.features[a:b] for a, b in self.bounds]

    @cached_property
    def sums(self) -> NDArray[np.float64]:
        """Sum, sum of squares and sum over positive rows of each feature, per fold: [folds, 3, width]."""
        found = np.zeros((self.folds, 3, self.features.shape[1]))
        for fold, (start, stop) in enumerate(self.bounds):
            for at in range(start, stop, _BLOCK):
                block = self.features[at : min(at + _BLOCK, stop)].astype(np.float64)
                found[fold, 0] += block.sum(axis=0)
                found[fold, 1] += np.square(block).sum(axis=0)
                found[fold, 2] += self.labels[at : at + len(block)] @ block
        return found


def fold_rows(features: NDArray[Any], labels: NDArray[np.float64], fold_of: Integers) -> FoldedRows:
    """Sort rows by fold into a copy, and centre and scale that copy.

    Args:
        features: [n, width]; float64 stays float64, everything else becomes float32.
        labels: 0 or 1, [n].
        fold_of: [n].

    Raises:
        InvalidRequest: a feature is not finite.
    """
    order = np.argsort(fold_of, kind="stable")
    dtype = np.float64 if features.dtype == np.float64 else np.float32
    width = features.shape[1]
    rows = np.empty((len(order), width), dtype=dtype)
    total, first = np.zeros(width), np.zeros(width)
    for at in range(0, len(order), _BLOCK):
        block = features[order[at : at + _BLOCK]].astype(dtype)
        rows[at : at + len(block)] = block
        total += block.sum(axis=0, dtype=np.float64)
    mean = total / len(order)
    if not np.isfinite(mean).all():
        raise InvalidRequest("features contain NaN or infinite values")
    for at in range(0, len(order), _BLOCK):
        block = rows[at : at + _BLOCK] - mean
        first += np.square(block).sum(axis=0)
        rows[at : at + _BLOCK] = block
    scale = np.sqrt(first / len(order))
    scale[scale == 0] = 1
    for at in range(0, len(order), _BLOCK):
        rows[at : at + _BLOCK] /= scale
    counts = np.bincount(fold_of)
    ends = np.cumsum(counts)
    bounds = list(zip((ends - counts).tolist(), ends.tolist(), strict=True))
    return FoldedRows(rows, labels[order].astype(np.float64), order, bounds, mean, scale)


class Training:
    """Folds that a probe is fitted on, standardised by their own mean and scale without a copy."""

    def __init__(self, rows: FoldedRows, folds: Iterable[int]) -> None:
        self.rows = rows
        self.members = sorted(folds)
        self.slices = rows.slices(self.members)
        self.labels = np.concatenate([rows.labels[one] for one in self.slices])
        sums = rows.sums[self.members].sum(axis=0)
        self.count = len(self.labels)
        self.mean = sums[0] / self.count
        variance = sums[1] / self.count - np.square(self.mean)
        self.scale = np.sqrt(np.maximum(variance, 0))
        # a constant feature stays at zero, as in scikit-learn's StandardScaler
        self.scale[self.scale < 1e-6] = 1
        ones = self.labels.sum()
        negatives = (sums[0] - sums[2]) / max(self.count - ones, 1)
        #: mean of the positive rows minus mean of the others, standardised, [width]
        self.difference = (sums[2] / max(ones, 1) - negatives) / self.scale

    @property
    def width(self) -> int:
        return int(self.rows.features.shape[1])

    @cached_property
    def correlation(self) -> NDArray[np.float64]:
        """Mean of the outer products of standardised rows, [width, width]."""
        gram = sum(self.rows.grams[one].astype(np.float64) for one in self.members) / self.count
        gram -= np.outer(self.mean, self.mean)
        gram /= self.scale
        gram /= self.scale[:, None]
        return np.asarray(gram)

    def blocks(self) -> Iterator[Floats]:
        """Slices of the rows, not standardised."""
        return (self.rows.features[one] for one in self.slices)

    def project(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Standardised rows times weights [width]: [rows]."""
        scaled = weights / self.scale
        cast = scaled.astype(self.rows.features.dtype)
        parts = [block @ cast for block in self.blocks()]
        return np.concatenate(parts).astype(np.float64) - float(self.mean @ scaled)

    def gather(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Transposed standardised rows times values [rows]: [width]."""
        found, at = np.zeros(self.width), 0
        for block in self.blocks():
            part = values[at : at + len(block)].astype(block.dtype)
            found += block.T @ part
            at += len(block)
        return np.asarray((found - self.mean * values.sum()) / self.scale)

    def standardised(self) -> NDArray[np.float64]:
        """A copy of the rows, standardised; for few rows."""
        rows = np.concatenate(list(self.blocks())).astype(np.float64)
        return np.asarray((rows - self.mean) / self.scale)

    def apply(self, fold: int, weights: NDArray[np.float64], bias: float) -> NDArray[np.float64]:
        """Scores of another fold's rows by weights of the standardised space."""
        start, stop = self.rows.bounds[fold]
        scaled = weights / self.scale
        scores = self.rows.features[start:stop] @ scaled.astype(self.rows.features.dtype)
        return np.asarray(scores.astype(np.float64) - float(self.mean @ scaled) + bias)

    def in_features(self, weights: NDArray[np.float64], bias: float) -> tuple[NDArray[np.float64], float]:
        """Return weights and bias for the caller's features."""
        scaled = weights / self.scale
        raw = scaled / self.rows.scale
        return raw, bias - float(self.mean @ scaled) - float(self.rows.mean @ raw)
