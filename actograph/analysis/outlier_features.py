"""Outlier features as in Dettmers et al. 2022, section 4.1 (https://arxiv.org/abs/2208.07339).

A feature is one column of the hidden state. It is an outlier feature if its magnitude reaches a threshold in
a share of the layers, and at a share of the sequence positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

#: the reading of the share of positions
PositionReading = Literal["union", "mean"]
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class OutlierRule:
    """Thresholds of an outlier feature; the defaults are those of the paper.

    Attributes:
        threshold: least magnitude of an outlier value.
        layer_share: least share of layers that have an outlier value of the feature.
        position_share: least share of positions.
        positions: `union` counts a position if any layer has an outlier value there; `mean` averages the
            share of positions over all layers.
    """

    threshold: float = 6.0
    layer_share: float = 0.25
    position_share: float = 0.06
    positions: PositionReading = "union"


@dataclass(frozen=True, kw_only=True)
class OutlierFeature:
    """A feature that meets an `OutlierRule`.

    Attributes:
        feature: its column.
        layers: layers with an outlier value.
        layer_share: their share of all layers.
        position_share: share of positions, by the reading of the rule.
        largest: its largest magnitude.
    """

    feature: int
    layers: list[int]
    layer_share: float
    position_share: float
    largest: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class OutlierCounts:
    """Counts of outlier values per layer and feature. Integers, so their order does not matter."""

    def __init__(self, layers: Sequence[int], width: int, threshold: float = 6.0) -> None:
        self.layers = list(layers)
        self.threshold = threshold
        self.positions = 0
        #: [layers, width]: positions with an outlier value
        self.hits = np.zeros((len(self.layers), width), np.int64)
        #: [width]: positions at which any layer has one
        self.any_hits = np.zeros(width, np.int64)
        #: [layers, width]: largest magnitude
        self.largest = np.zeros((len(self.layers), width))

    def add(self, rows: Mapping[int, Sequence[Floats]]) -> None:
        """Add the same positions of every layer.

        Args:
            rows: layer -> tensors [positions, width]; several tensors of a layer count together.

        Raises:
            ValueError: the tensors differ in shape, or a layer is missing.
        """
        shapes = {tensor.shape for tensors in rows.values() for tensor in tensors}
        if set(rows) != set(self.layers) or len(shapes) != 1:
            raise ValueError(f"every layer needs rows of the same positions; the shapes are {sorted(shapes)}")
        ((count, width),) = shapes
        if width != self.any_hits.size:
            raise ValueError(f"the rows have {width} features instead of {self.any_hits.size}")
        anywhere = np.zeros((count, width), bool)
        for place, layer in enumerate(self.layers):
            here = np.zeros((count, width), bool)
            for tensor in rows[layer]:
                magnitude = np.abs(tensor)
                here |= magnitude >= self.threshold
                if count:
                    np.maximum(self.largest[place], magnitude.max(axis=0), out=self.largest[place])
            self.hits[place] += here.sum(axis=0)
            anywhere |= here
        self.any_hits += anywhere.sum(axis=0)
        self.positions += count

    def shares(self, positions: PositionReading) -> NDArray[np.float64]:
        """Share of positions of each feature: [width]."""
        hits = self.any_hits if positions == "union" else self.hits.mean(axis=0)
        return np.asarray(hits / max(1, self.positions), np.float64)

    def features(self, rule: OutlierRule) -> list[OutlierFeature]:
        """The outlier features, the largest share of positions first.

        Raises:
            ValueError: the counts were made with another threshold.
        """
        if rule.threshold != self.threshold:
            raise ValueError(f"the values were counted from {self.threshold} on, not from {rule.threshold}")
        layers, positions = (self.hits > 0).mean(axis=0), self.shares(rule.positions)
        # a share such as 0.06 is no binary number: 6 of 100 positions must reach it
        slack = 1e-12
        meets = (layers >= rule.layer_share - slack) & (positions >= rule.position_share - slack)
        chosen = np.flatnonzero(meets & (self.hits.sum(axis=0) > 0))
        found = [
            OutlierFeature(
                feature=int(feature),
                layers=[self.layers[place] for place in np.flatnonzero(self.hits[:, feature])],
                layer_share=float(layers[feature]),
                position_share=float(positions[feature]),
                largest=float(self.largest[:, feature].max()),
            )
            for feature in chosen
        ]
        return sorted(found, key=lambda one: (-one.position_share, one.feature))
