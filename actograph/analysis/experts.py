"""Use of the experts of a mixture-of-experts layer: load, router entropy, co-activation, outliers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class ExpertUse:
    """Sums over the tokens of one layer."""

    def __init__(self) -> None:
        self.tokens = 0
        self.routed = 0
        self.entropy = 0.0
        #: [experts]: tokens of each expert
        self.load = np.zeros(0, np.int64)
        #: [experts, experts]: tokens that two experts share
        self.together = np.zeros((0, 0), np.int64)
        #: [experts]: tokens of each expert whose input has an outlier value
        self.outliers = np.zeros(0, np.int64)
        #: [experts]: largest magnitude of the inputs of each expert
        self.largest = np.zeros(0)
        #: [experts, width]: tokens of each expert whose input has an outlier value of the feature; no columns
        #: without inputs
        self.hits = np.zeros((0, 0), np.int64)

    def add_chosen(self, indices: NDArray[np.integer[Any]]) -> None:
        """Add the chosen experts of some tokens: [tokens, experts per token]."""
        if not indices.size:
            return
        self._grow(int(indices.max()) + 1)
        chosen = np.zeros((len(indices), len(self.load)), np.int64)
        np.put_along_axis(chosen, indices.astype(np.int64), 1, axis=1)
        self.load += chosen.sum(axis=0)
        self.together += chosen.T @ chosen
        self.tokens += len(indices)

    def add_inputs(self, indices: NDArray[np.integer[Any]], rows: NDArray[Any], threshold: float) -> None:
        """Add the inputs of the chosen experts of some tokens.

        Args:
            indices: [tokens, experts per token].
            rows: [tokens, width]: input of the layer's experts, such as `mlp_in`.
            threshold: least magnitude of an outlier value.
        """
        if not indices.size:
            return
        self._grow(int(indices.max()) + 1)
        if not self.hits.shape[1]:
            self.hits = np.zeros((len(self.load), rows.shape[1]), np.int64)
        chosen = np.zeros((len(indices), len(self.load)))
        np.put_along_axis(chosen, indices.astype(np.int64), 1, axis=1)
        magnitude = np.abs(rows)
        over = magnitude >= threshold
        # sums of ones in float64 are exact
        self.outliers += (over.any(axis=1) @ chosen).astype(np.int64)
        features = np.flatnonzero(over.any(axis=0))
        self.hits[:, features] += (chosen.T @ over[:, features]).astype(np.int64)
        of_tokens = magnitude.max(axis=1).astype(np.float64)
        np.maximum.at(self.largest, indices.ravel(), np.repeat(of_tokens, indices.shape[1]))

    def add_logits(self, logits: NDArray[Any]) -> None:
        """Add router logits [tokens, experts]; the entropy is that of their softmax, in nats."""
        if not logits.size:
            return
        self._grow(logits.shape[1])
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        total = np.exp(shifted).sum(axis=1)
        mean = (np.exp(shifted) * shifted).sum(axis=1) / total
        self.entropy += float((np.log(total) - mean).sum())
        self.routed += len(logits)

    def _grow(self, experts: int) -> None:
        more = experts - len(self.load)
        if more > 0:
            self.load = np.pad(self.load, (0, more))
            self.together = np.pad(self.together, ((0, more), (0, more)))
            self.largest = np.pad(self.largest, (0, more))
            self.hits = np.pad(self.hits, ((0, more), (0, 0)))
            self.outliers = np.pad(self.outliers, (0, more))

    def summary(self) -> dict[str, Any]:
        """Load shares, router entropy, the most frequent pairs of experts, and outliers of each expert.

        `imbalance` is the largest load divided by the mean load. `outliers` is [] without inputs.
        """
        share = self.load / max(1, self.tokens)
        upper = np.triu(self.together, 1)
        order = np.argsort(-upper, axis=None, kind="stable")[:10]
        pairs = [divmod(int(place), max(1, len(upper))) for place in order if upper.flat[place]]
        return {
            "tokens": max(self.tokens, self.routed),
            "load": [float(one) for one in share],
            "imbalance": float(self.load.max() / self.load.mean()) if self.load.any() else None,
            "router_entropy": self.entropy / self.routed if self.routed else None,
            "pairs": [
                {"experts": [a, b], "share": float(upper[a, b] / max(1, self.tokens))} for a, b in pairs
            ],
            "outliers": [self._of_expert(e) for e in range(len(self.load)) if self.hits.shape[1]],
        }

    def _of_expert(self, expert: int) -> dict[str, Any]:
        """Outlier values in the inputs of one expert, with its five most frequent features."""
        tokens, hits = int(self.load[expert]), self.hits[expert]
        order = np.argsort(-hits, kind="stable")[:5]
        return {
            "expert": expert,
            "tokens": tokens,
            "share": float(self.outliers[expert] / tokens) if tokens else None,
            "largest": float(self.largest[expert]),
            "features": [
                {"feature": int(feature), "share": float(hits[feature] / tokens)}
                for feature in order
                if hits[feature]
            ],
        }
