"""Outliers of arrays in memory, named by layer."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.analysis.experts import ExpertUse
from actograph.analysis.massive import MassiveCandidates
from actograph.analysis.moments import Moments
from actograph.analysis.outlier_features import OutlierCounts, OutlierRule
from actograph.contract.errors import InvalidDataset

Array = NDArray[Any]
_NUMBER = re.compile(r"\d+")
_LAYER_WORD = re.compile(r"(?<![a-z])layers?(?![a-z])", re.IGNORECASE)
_ROUTED = ("expert_indices", "router_logits")
#: points whose rows the experts of a layer read
_EXPERT_INPUTS = ("mlp_in", "ln_mlp")


def outliers_of_arrays(
    arrays: Mapping[str, Array],
    rule: OutlierRule | None = None,
    *,
    together: bool = False,
    massive_magnitude: float = 100.0,
    massive_ratio: float = 1000.0,
) -> dict[str, Any]:
    """Find outlier features and massive activations, and sum up moments and the use of experts.

    The first number of a name is the layer; the rest is the point, such as `ln_attn` of `layer_3_ln_attn`.
    Arrays named `...router_logits...` and `...expert_indices...` belong to routers.

    Args:
        arrays: name -> [positions, width] or [batch, sequence, width].
        rule: thresholds and reading of the positions; None for those of the paper.
        together: count the points of a layer together.

    Returns:
        `outlier_features`, `massive_activations`, `arrays` (moments by name) and `experts`. The median
        magnitudes are exact.

    Raises:
        InvalidDataset: names or shapes do not fit together.
    """
    rule = rule or OutlierRule()
    places = {name: _place(name, number) for number, name in enumerate(arrays)}
    values = {name: _rows(name, array) for name, array in arrays.items() if not _is_routed(name)}
    groups: dict[str, dict[int, list[Array]]] = {}
    taken: set[tuple[str, int]] = set()
    every = "+".join(dict.fromkeys(places[name][0] for name in values))
    for name, rows in values.items():
        point, layer = places[name]
        if (point, layer) in taken:
            raise InvalidDataset(f"{name}: another array is layer {layer} of {point or 'the model'} too")
        taken.add((point, layer))
        groups.setdefault(every if together else point, {}).setdefault(layer, []).append(rows)
    found: list[dict[str, Any]] = []
    for group, layers in groups.items():
        for one in _counts(group, layers, rule.threshold).features(rule):
            found.append(({"points": group} if group else {}) | one.as_dict())
    moments, massive = {}, []
    for name, rows in values.items():
        one_massive, numbers = _values_of(name, arrays[name], rows, massive_magnitude, massive_ratio)
        massive += one_massive
        moments[name] = numbers
    return {
        "positions": rule.positions,
        "outlier_features": found,
        "massive_activations": sorted(massive, key=lambda one: -abs(one["value"])),
        "arrays": moments,
        "experts": _experts(arrays, places, rule.threshold),
    }


def _counts(group: str, layers: dict[int, list[Array]], threshold: float) -> OutlierCounts:
    width = next(iter(layers.values()))[0].shape[1]
    counts = OutlierCounts(sorted(layers), width, threshold)
    try:
        counts.add(layers)
    except ValueError as error:
        raise InvalidDataset(f"{group or 'the layers'}: {error}") from None
    return counts


def _values_of(
    name: str, array: Array, rows: Array, magnitude: float, ratio: float
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Massive activations and moments of one array."""
    sums, candidates = Moments(), MassiveCandidates(magnitude)
    length = array.shape[-2]
    sums.add(rows)
    for sequence in range(len(rows) // length if length else 0):
        candidates.add(rows[sequence * length : (sequence + 1) * length], sequence, range(length))
    median = float(np.median(np.abs(rows))) if rows.size else float("nan")
    numbers = {
        "values": sums.count,
        "mean": sums.mean,
        "variance": sums.variance,
        "kurtosis": sums.kurtosis,
        "largest": sums.largest,
        "median_magnitude": median,
    }
    massive = []
    for one in candidates.found(name, ratio, median):
        fields = one.as_dict()
        fields["array"], fields["sequence"] = fields.pop("hook"), fields.pop("source")
        massive.append(fields)
    return massive, numbers


def _experts(
    arrays: Mapping[str, Array], places: Mapping[str, tuple[str, int]], threshold: float
) -> dict[str, Any]:
    inputs = {places[name][1]: name for name in arrays if places[name][0] in _EXPERT_INPUTS}
    uses: dict[int, ExpertUse] = {}
    for name, array in arrays.items():
        if _is_routed(name):
            use = uses.setdefault(places[name][1], ExpertUse())
            rows = _rows(name, array)
            if "expert_indices" in name:
                if not np.issubdtype(rows.dtype, np.integer) or (rows.size and rows.min() < 0):
                    raise InvalidDataset(f"{name}: expert indices are integers from 0")
                use.add_chosen(rows)
                if read := inputs.get(places[name][1]):
                    values = _rows(read, arrays[read])
                    if len(values) != len(rows):
                        raise InvalidDataset(f"{read} and {name} have rows of different tokens")
                    use.add_inputs(rows, values, threshold)
            else:
                use.add_logits(rows)
    return {str(layer): uses[layer].summary() for layer in sorted(uses)}


def _place(name: str, number: int) -> tuple[str, int]:
    """Point and layer of an array; `number` is its place in the file, for names without a number."""
    found = _NUMBER.search(name)
    if found is None:
        return "", number
    rest = _LAYER_WORD.sub("", f"{name[: found.start()].rstrip('._-[')} {name[found.end() :].lstrip('._-]')}")
    return re.sub(r"[\s._-]+", "_", rest).strip("_"), int(found[0])


def _is_routed(name: str) -> bool:
    return any(word in name for word in _ROUTED)


def _rows(name: str, array: Array) -> Array:
    """The array as [positions, width]."""
    if array.ndim not in (2, 3):
        raise InvalidDataset(
            f"{name} has shape {list(array.shape)}; needed is [positions, width] or [batch, sequence, width]"
        )
    if array.dtype.kind not in "iuf":
        raise InvalidDataset(f"{name} has dtype {array.dtype}; numbers are needed")
    return array.reshape(-1, array.shape[-1])
