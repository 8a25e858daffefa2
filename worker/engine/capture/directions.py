"""Directions of readouts on the device: what rows are multiplied with.

Products and sums are in float64, and a value is rounded to float32 once: so it depends on its row alone, and
neither on the other rows of a pass nor on the order of the sum.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from evals.plans import BLOCK_ROWS, readout_bytes
from worker.engine.capture.budget import Piece
from worker.engine.capture.layouts import Layout
from worker.engine.capture.on_device import OnDevice


class Directions:
    """The vectors and biases of one layout's readouts, by the location of their rows.

    Args:
        memory: `readout_bytes` of the device.
    """

    def __init__(self, layout: Layout, memory: Piece) -> None:
        self._device = memory.device
        #: location -> its points in the layout, vectors [points, width] and biases [points, 1]
        self._of: dict[str, tuple[list[int], Tensor, Tensor]] = {}
        (group,) = layout.groups
        for location in dict.fromkeys(group.locations):
            points = [i for i, one in enumerate(group.locations) if one == location]
            own = [layout.readouts[i] for i in points]
            vectors = torch.from_numpy(np.array([one.vector for one in own], np.float64))
            biases = torch.tensor([[one.bias] for one in own], dtype=torch.float64)
            self._of[location] = (
                points,
                memory.tensor(vectors.shape, torch.float64).copy_(vectors),
                memory.tensor(biases.shape, torch.float64).copy_(biases),
            )
        widest = max(vectors.shape[1] for _, vectors, _ in self._of.values())
        self._rows = memory.tensor((BLOCK_ROWS * widest,), torch.float64)

    @property
    def places(self) -> tuple[int, ...]:
        """Addresses of vectors and biases, and of the memory for rows."""
        weights = (one.data_ptr() for _, *both in self._of.values() for one in both)
        return (self._rows.data_ptr(), *weights)

    def values(self, location: str, rows: Tensor) -> list[tuple[int, Tensor]]:
        """Values of up to 64 rows [rows, width] at a location.

        Returns: points of the layout, each with its values, float32 [rows, 1].
        """
        points, vectors, biases = self._of[location]
        x = self._rows[: rows.numel()].view(rows.shape).copy_(rows)
        found = torch.addmm(biases, vectors, x.T).to(torch.float32)
        return [(point, own[:, None]) for point, own in zip(points, found, strict=True)]


class ReadoutDirections(OnDevice[Directions]):
    """The directions of live requests, those of each layout once."""

    def open(self, layout: Layout) -> Directions | None:
        """The directions for one more request; None if the device has no room for them."""
        widths = [one.width for one in layout.readouts]
        return self.take(layout.readouts, readout_bytes(widths), partial(Directions, layout))

    def close(self, layout: Layout) -> None:
        """End the use of directions by a request."""
        self.give(layout.readouts)
