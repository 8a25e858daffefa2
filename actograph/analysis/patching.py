"""Activation patching over pairs: effects of cells, and their means with intervals.

Effects are normalised as by Wang et al. 2022 and Heimersheim & Nanda 2024: (metric - corrupted) / (clean -
corrupted), 0 for the corrupted prompt and 1 for the clean one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from actograph.contract.patching import PatchedCell, PatchedPair

Array = NDArray[Any]
#: coverage of the intervals
LEVEL = 0.95
#: largest difference that is rounding, as a share of the metric, by the dtype of the model
ROUNDING = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


def is_defined(clean: float, corrupted: float, dtype: str) -> bool:
    """Whether the metric of both prompts differs by more than rounding in this dtype."""
    rounding = ROUNDING.get(dtype, max(ROUNDING.values()))
    return abs(clean - corrupted) > rounding * max(1.0, abs(clean), abs(corrupted))


def stacked(pairs: Sequence[PatchedPair], metrics: Sequence[Array]) -> dict[str, Array]:
    """The arrays of a job by name.

    Args:
        metrics: of each pair, [points, layers, positions], or [points, layers, positions, heads]. NaN where
            the model lacks a point in a layer.

    Returns: `metric` and `effect` [pairs, points, layers, positions(, heads)], NaN where a pair has no such
        cell or its effects are undefined; `clean` and `corrupted` [pairs]; over pairs `mean`, `low`, `high`
        and the number of `pairs` with an effect.
    """
    most = max(one.shape[2] for one in metrics)
    shape = (len(metrics), *metrics[0].shape[:2], most, *metrics[0].shape[3:])
    metric = np.full(shape, np.nan)
    for place, one in enumerate(metrics):
        metric[place, :, :, : one.shape[2]] = one
    clean, corrupted = (np.array([getattr(one, name) for one in pairs]) for name in ("clean", "corrupted"))
    denominator = np.where([one.is_defined for one in pairs], clean - corrupted, np.nan)
    beside = (slice(None), *(None,) * (metric.ndim - 1))
    effect = (metric - corrupted[beside]) / denominator[beside]
    known = ~np.isnan(effect)
    count = known.sum(axis=0)
    some, several = np.maximum(count, 1), count > 1
    mean = np.where(count > 0, np.where(known, effect, 0.0).sum(axis=0) / some, np.nan)
    squares = np.where(known, (effect - mean) ** 2, 0.0).sum(axis=0)
    error = np.sqrt(squares / np.maximum(count - 1, 1) / some)
    half = np.where(several, t.ppf((1 + LEVEL) / 2, np.maximum(count - 1, 1)) * error, np.nan)
    return {
        "metric": metric, "effect": effect, "clean": clean, "corrupted": corrupted, "mean": mean,
        "low": mean - half, "high": mean + half, "pairs": count,
    }  # fmt: skip


def positions_of(pairs: Sequence[PatchedPair]) -> list[str]:
    """Names of the positions: of the pair with the most."""
    return max((one.positions for one in pairs), key=len)


def cells(pairs: Sequence[PatchedPair], arrays: dict[str, Array]) -> list[PatchedCell]:
    """Every cell that a pair has."""
    first, positions = pairs[0], positions_of(pairs)
    has = ~np.isnan(arrays["metric"])
    sums = np.where(has, arrays["metric"], 0.0).sum(axis=0)
    counts = has.sum(axis=0)
    found = []
    for place in np.argwhere(counts > 0).tolist():
        at = tuple(place)
        point, layer, position, *head = place
        found.append(
            PatchedCell(
                point=first.points[point],
                layer=first.layers[layer],
                position=positions[position],
                head=first.heads[head[0]] if head and first.heads is not None else None,
                effect=_number(arrays["mean"][at]),
                low=_number(arrays["low"][at]),
                high=_number(arrays["high"][at]),
                metric=float(sums[at] / counts[at]),
                pairs=int(arrays["pairs"][at]),
            )
        )
    return found


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
