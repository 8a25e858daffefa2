"""Hands what a generation shows to the row path: a prompt point by point, a decode step as a whole."""

import torch

from worker.engine.rows.rows import RowStream


class StepValues:
    """Between a `PointReader` and a `RowStream`.

    A prompt's tensors go on one by one, so that no two layers' prompt rows are held on the device, a
    decode step's together, for they are one row each.

    Args:
        points: of the stream.
    """

    def __init__(self, stream: RowStream, *, points: int) -> None:
        self._stream = stream
        self._last = points - 1
        self._values: list[torch.Tensor] = []
        self._decoding = False

    def take(self, point: int, value: torch.Tensor) -> None:
        """One point's tensor, [batch, tokens, ...]; the points come in their order, step by step."""
        if not self._decoding:
            self._stream.prefill(point, value)
            self._decoding = point == self._last
            return
        self._values.append(value)
        if point == self._last:
            values, self._values = self._values, []
            self._stream.decode(values)
