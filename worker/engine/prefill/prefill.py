"""Prefill: rows of every token of given texts; nothing is generated.

One forward pass reads the texts, and its rows go through the bounded queue of the row path. The model waits
while the queue is full, so memory does not depend on the number of layers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from actograph.contract.errors import CaptureFailed
from worker.engine.batches import Capture, ReadingJob
from worker.engine.edits.interventions import Editor
from worker.engine.locations import place_of
from worker.engine.requests import Edit, Generation, GenerationRequest
from worker.engine.rows.rows import RowStream
from worker.engine.tokens.model_inputs import padded_inputs
from worker.engine.traced import tracing
from worker.engine.traced.point_reader import PointReader

#: least bytes of logits that are computed at once
_LEAST_PIECE_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class Prefill(ReadingJob):
    """One call to `Engine.prefill`."""

    capture: Capture
    on_step: Callable[[int], None] | None

    def run_batch(self, batch: Sequence[int]) -> dict[int, Generation]:
        chosen = [self.requests[i] for i in batch]
        stream = self.capture.stream(
            batch,
            chosen,
            generated_ids=[()] * len(chosen),
            ended_at=[0] * len(chosen),
            should_stop=self.should_stop,
        )
        progress = _Progress(self, stream)
        try:
            self._forward(chosen, progress)
            if progress.cancelled:
                return {index: self.ended(index, cancelled=True) for index in batch}
            if not progress.complete:
                raise CaptureFailed(f"the forward pass ended before it reached {self.capture.locations[-1]}")
            if not stream.finish([0] * len(chosen)):
                return {index: self.ended(index, cancelled=True) for index in batch}
            return {index: self.ended(index, error=stream.errors.get(row)) for row, index in enumerate(batch)}
        finally:
            stream.close()

    def _forward(self, chosen: Sequence[GenerationRequest], progress: "_Progress") -> None:
        """Read the texts, up to the last hook."""
        model, locations, head = self.hooks.model, self.capture.locations, self.hooks.head
        head_path = place_of(head).path
        in_pieces = locations[-1] == head
        reader = PointReader(
            model.lm,
            locations,
            progress.take,
            batch=len(chosen),
            flat=self.hooks.flat,
            copied=self.capture.copied,
            by_hand=head_path if in_pieces else None,
        )
        inputs = padded_inputs(model, chosen)
        editor = self._editor(chosen, at_head=False)
        observers: list[tracing.Observer] = [reader] if editor is None else [editor, reader]
        modules = [place_of(location).path for location in locations]
        modules += [] if editor is None else editor.modules
        if not in_pieces:
            tracing.forward(model, inputs, observers, modules)
            return
        editors = [e for e in (editor, self._editor(chosen, at_head=True)) if e is not None]
        pieces = _HeadPieces(self, reader, progress, editors=editors, samples=len(chosen))
        with pieces.on(model.hf.get_submodule(head_path)):
            tracing.forward(model, inputs, observers, [m for m in modules if m != head_path])

    def _editor(self, requests: Sequence[GenerationRequest], *, at_head: bool) -> Editor | None:
        """Editor of the head's output, which comes in pieces, or of everything else."""

        def belongs(edit: Edit) -> bool:
            return (self.hooks.edited_at(edit.hook) == self.hooks.head) == at_head

        return self.editor(requests, belongs=belongs)


class _Progress:
    """Hands every point of a forward pass to the row path, and ends the pass after the last point.

    Attributes:
        cancelled: `should_stop` returned True.
        complete: all points were handed over.
    """

    def __init__(self, job: Prefill, stream: RowStream) -> None:
        self.cancelled = False
        self.complete = False
        self._job = job
        self._stream = stream
        self._last = len(job.capture.reads) - 1
        self._point = -1

    def take(self, point: int, tensor: torch.Tensor, *, after: int = 0) -> None:
        """Hand over a point's rows, or a piece of them: see `RowStream.prefill`."""
        if point != self._point:
            self._point = point
            self.check_cancel()
            if self._job.on_step is not None:
                self._job.on_step(point)
        self._stream.prefill(point, tensor, after=after)
        if point == self._last and not after:
            self.complete = True
            tracing.stop()

    def check_cancel(self) -> None:
        """End the forward pass if the caller wants it to stop."""
        if self._job.should_stop():
            self.cancelled = True
            tracing.stop()


class _HeadPieces:
    """Computes the logits of every token a few tokens at a time, and ends the forward pass.

    The model's own forward would compute all of them at once: with a vocabulary of 150,000 words, 20 GB for
    16 texts of 2,048 tokens.
    """

    def __init__(
        self,
        job: Prefill,
        reader: PointReader,
        progress: _Progress,
        *,
        editors: Sequence[Editor],
        samples: int,
    ) -> None:
        self._head = job.hooks.head
        self._capture = job.capture
        self._reader = reader
        self._progress = progress
        self._editors = editors
        self._samples = samples

    @contextmanager
    def on(self, head: torch.nn.Module) -> Iterator[None]:
        """Compute the head's output here instead of in the module."""
        handle = head.register_forward_pre_hook(self._run)
        try:
            yield
        finally:
            handle.remove()

    def _run(self, head: torch.nn.Module, args: tuple[Any, ...]) -> None:
        hidden = args[0] if args else None
        if not isinstance(hidden, torch.Tensor) or hidden.ndim != 3 or hidden.shape[0] != self._samples:
            raise CaptureFailed(f"{self._head}: the head's input has no row for each token of each text")
        self._take_input(hidden)
        padded, point = hidden.shape[1], len(self._capture.reads) - 1
        if self._reader.due != point:
            raise CaptureFailed(f"{self._head} came before {self._capture.locations[self._reader.due]}")
        # the last token alone needs no other logits
        start = padded - 1 if self._last_alone else 0
        size = 1  # the first piece shows the size of a row
        while start < padded:
            self._progress.check_cancel()
            piece = head.forward(hidden[:, start : start + size])
            size = self._size(piece)
            for editor in self._editors:
                editor.edit_piece(self._head, piece, start=start, padded=padded)
            start += piece.shape[1]
            self._progress.take(point, piece, after=padded - start)

    def _take_input(self, hidden: torch.Tensor) -> None:
        """Edit and read the head's input, unless an earlier location shows the same tensor."""
        location = f"{place_of(self._head).path}.input"
        for editor in self._editors:
            editor.edit_piece(location, hidden, start=0, padded=hidden.shape[1])
        for point, read in enumerate(self._capture.locations):
            if read == location:
                self._reader.show(point, hidden)

    @property
    def _last_alone(self) -> bool:
        return self._capture.shaping.chooser is None and self._capture.positions == "last_prompt"

    def _size(self, piece: torch.Tensor) -> int:
        """Tokens to compute at once."""
        room = max(_LEAST_PIECE_BYTES, self._capture.options.device_buffer_bytes)
        return max(1, room // max(1, piece[:, :1].nbytes))
