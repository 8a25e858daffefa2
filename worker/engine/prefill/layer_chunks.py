"""The rows of one forward pass over prompts, a chunk of layers at a time.

The forward runs once. Where a chunk of layers has passed, it waits until the chunk's rows have gone
to the sink; only then does the next layer run, so that no more than one chunk's rows are held.
Every layer is computed once and the numbers are those of an undivided forward, for every architecture:
nothing is put back into the model.
"""

from collections.abc import Callable, Sequence

import torch

from worker.engine.rows.held_rows import Point
from worker.engine.rows.rows import RowStream
from worker.engine.traced import tracing

Errors = dict[int, BaseException]


class LayerChunks:
    """Takes every point of the forward in order, opens a `RowStream` for each chunk in turn, and ends the
    forward after the last point.

    Args:
        points: all of them, in order.
        layers: of each point.
        chunks: as `chunks_of` gives them.
        samples: in the batch.
        open_stream: makes the stream of a chunk, given its points and where errors are collected.
        should_stop: polled between layers; True ends the forward.
        on_layer: told at each new layer how many of its points' layers are done.

    Attributes:
        errors: sample -> what its sink raised.
        cancelled: `should_stop` said so.
        ended: the last point has passed, and all its rows are in the sink.
    """

    def __init__(
        self,
        points: Sequence[Point],
        layers: Sequence[int],
        chunks: Sequence[range],
        *,
        samples: int,
        open_stream: Callable[[Sequence[Point], Errors], RowStream],
        should_stop: Callable[[], bool],
        on_layer: Callable[[int], None] | None,
    ) -> None:
        self.errors: Errors = {}
        self.cancelled = False
        self.ended = False
        self._points = points
        self._layers = layers
        self._chunks = list(chunks)
        self._samples = samples
        self._open_stream = open_stream
        self._should_stop = should_stop
        self._on_layer = on_layer
        self._stream: RowStream | None = None
        self._chunk = range(0)
        self._layer: int | None = None

    def take(self, point: int, tensor: torch.Tensor, *, after: int = 0) -> None:
        """Hand over a point's rows, or a piece of them: see `RowStream.prefill`."""
        if self._layers[point] != self._layer:
            self._next_layer(self._layers[point])
        if self._stream is None:
            self._chunk = self._chunks.pop(0)
            self._stream = self._open_stream([self._points[p] for p in self._chunk], self.errors)
        self._stream.prefill(point - self._chunk.start, tensor, after=after)
        if point == self._chunk.stop - 1 and not after:
            self._complete()
            if not self._chunks:
                self.ended = True
                tracing.stop()

    def look_for_cancel(self) -> None:
        """End the forward where the caller wants it to stop."""
        if self._should_stop():
            self.cancelled = True
            tracing.stop()

    def close(self) -> None:
        """Drop what has not been written; safe to call at any time."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _complete(self) -> None:
        """Wait until the sink has all rows of the chunk in hand."""
        assert self._stream is not None
        dropped = not self._stream.finish([0] * self._samples)
        self.close()
        if dropped:
            self.cancelled = True
            tracing.stop()

    def _next_layer(self, layer: int) -> None:
        self._layer = layer
        self.look_for_cancel()
        if self._on_layer is not None:
            self._on_layer(layer)
