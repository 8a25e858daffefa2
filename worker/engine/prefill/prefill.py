"""Prefill: rows of every token of given texts, nothing generated, one chunk of layers at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from actograph.contract.errors import CaptureFailed
from actograph.contract.plans.layer_order import LayerOrder, chunks_of
from worker.engine.edits.interventions import Editor
from worker.engine.edits.request_edits import editor_of
from worker.engine.locations import place_of
from worker.engine.model import memory
from worker.engine.model.learned_limit import LearnedLimit
from worker.engine.model.loaded import LoadedModel
from worker.engine.prefill.layer_chunks import Errors, LayerChunks
from worker.engine.requests import (
    BufferOptions,
    Edit,
    Generation,
    GenerationRequest,
    Positions,
    RowShaping,
    RowSink,
)
from worker.engine.rows.held_rows import Point
from worker.engine.rows.rows import RowStream
from worker.engine.tokens.padding import padded_inputs
from worker.engine.traced import ladder, tracing
from worker.engine.traced.point_reader import PointReader

#: logits that are computed at once, where all of a prompt's are wanted and no buffer is larger
_LEAST_PIECE_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefill:
    """One call to `Engine.prefill`: everything that its batches have in common."""

    model: LoadedModel
    flat: frozenset[str]
    edited_at: Callable[[str], str]
    head: str  # location of its output
    order: LayerOrder
    requests: Sequence[GenerationRequest]
    reads: Sequence[tuple[str, Point]]  # in execution order
    positions: Positions
    dtype: torch.dtype | None
    shaping: RowShaping
    sink: RowSink
    should_stop: Callable[[], bool]
    on_layer: Callable[[int], None] | None
    layers_per_pass: int
    limit: LearnedLimit  # told of what fits, in padded tokens
    options: BufferOptions

    def run(self, batches: Sequence[Sequence[int]]) -> list[Generation]:
        """One `Generation` for each request, in their order.

        Args:
            batches: requests that may be run together.
        """
        done: dict[int, Generation] = {}
        ways = [self, *self._sparing()]
        devices = self.model.devices

        def attempt(batch: Sequence[int], spare: int) -> None:
            memory.reset_peak(devices)
            tokens = len(batch) * max(len(self.requests[i].prompt_ids) for i in batch)
            try:
                done.update(ways[spare]._run(batch))
            except Exception as error:
                if memory.is_out_of_memory(error):
                    self.limit.failed(tokens, len(batch))
                raise
            if all(done[i].finish_reason != "cancelled" for i in batch):
                self.limit.passed(tokens)

        def reset(batch: Sequence[int]) -> None:
            for index in batch:
                self.sink.reset(index)

        def give_up(index: int, seen: Mapping[str, int]) -> None:
            request = self.requests[index]
            what = f"a text of {len(request.prompt_ids)} tokens, one layer's rows at a time,"
            done[index] = self._outcome(index, memory.out_of_memory(devices, what, seen))

        ladder.descend(
            batches,
            attempt=attempt,
            reset=reset,
            observe=lambda: memory.memory_snapshot(devices),
            give_up=give_up,
            spares=len(ways) - 1,
        )
        return [done[i] for i in range(len(self.requests))]

    def _sparing(self) -> Iterator["Prefill"]:
        """Ways to run a batch of one that each need less: half the layers per pass, and so on."""
        layers = len({self.order.layer_of(location) for location, _ in self.reads})
        size, options = min(self.layers_per_pass, layers), ladder.sparing(self.options)
        if size == 1 and options != self.options:
            yield replace(self, options=options)
        while size > 1:
            size //= 2
            yield replace(self, layers_per_pass=size, options=options)

    def _run(self, batch: Sequence[int]) -> dict[int, Generation]:
        """One batch, from padding to the last row in the sink."""
        chosen = [self.requests[i] for i in batch]
        lengths = [len(r.prompt_ids) for r in chosen]
        locations = [location for location, _ in self.reads]
        points = [point for _, point in self.reads]
        layers = [self.order.layer_of(location) for location in locations]

        def open_stream(part: Sequence[Point], errors: Errors) -> RowStream:
            return RowStream(
                part,
                prompt_lengths=lengths,
                padded_length=max(lengths),
                indices=batch,
                positions=self.positions,
                dtype=self.dtype,
                shaping=self.shaping,
                prompt_ids=[r.prompt_ids for r in chosen],
                generated_ids=[()] * len(chosen),
                options=self.options,
                sink=self.sink,
                ended_at=[0] * len(chosen),
                should_stop=self.should_stop,
                errors=errors,
            )

        chunks = LayerChunks(
            points,
            layers,
            chunks_of(layers, self.layers_per_pass, self.order.end),
            samples=len(chosen),
            open_stream=open_stream,
            should_stop=self.should_stop,
            on_layer=self.on_layer,
        )
        head_path = place_of(self.head).path
        in_pieces = locations[-1] == self.head
        reader = PointReader(
            self.model.lm,
            locations,
            chunks.take,
            batch=len(chosen),
            flat=self.flat,
            copied=[i for i, point in enumerate(points) if point.changed_later],
            by_hand=head_path if in_pieces else None,
        )
        inputs = padded_inputs(self.model, chosen)
        editor = self._editor(chosen, at_head=False)
        observers: list[tracing.Observer] = [reader] if editor is None else [editor, reader]
        modules = [place_of(location).path for location in locations]
        modules += [] if editor is None else editor.modules
        try:
            if in_pieces:
                editors = [e for e in (editor, self._editor(chosen, at_head=True)) if e is not None]
                pieces = _HeadPieces(self, reader, chunks, editors=editors, samples=len(chosen))
                with pieces.on(self.model.hf.get_submodule(head_path)):
                    tracing.forward(self.model, inputs, observers, [m for m in modules if m != head_path])
            else:
                tracing.forward(self.model, inputs, observers, modules)
            if chunks.cancelled:
                return {index: self._outcome(index, cancelled=True) for index in batch}
            if not chunks.ended:
                raise CaptureFailed(f"the forward pass ended before {locations[-1]} was reached")
            return {index: self._outcome(index, chunks.errors.get(row)) for row, index in enumerate(batch)}
        finally:
            chunks.close()

    def _editor(self, requests: Sequence[GenerationRequest], *, at_head: bool) -> Editor | None:
        """What makes the edits at the head's output, which comes in pieces, or those everywhere else."""

        def belongs(edit: Edit) -> bool:
            return (self.edited_at(edit.hook) == self.head) == at_head

        return editor_of(self.model, requests, edited_at=self.edited_at, flat=self.flat, belongs=belongs)

    def _outcome(
        self, index: int, error: BaseException | None = None, *, cancelled: bool = False
    ) -> Generation:
        request = self.requests[index]
        return Generation(
            key=request.key,
            prompt_ids=request.prompt_ids,
            generated_ids=(),
            finish_reason="cancelled" if cancelled else "stop" if error is None else "error",
            error=error,
        )


class _HeadPieces:
    """Computes the logits of every token a few tokens at a time, and nothing after them.

    The model's own forward would make them all at once: a vocabulary of 150,000 words takes 20 GB
    for 16 texts of 2,048 tokens.
    """

    def __init__(
        self,
        job: Prefill,
        reader: PointReader,
        chunks: LayerChunks,
        *,
        editors: Sequence[Editor],
        samples: int,
    ) -> None:
        self._job = job
        self._reader = reader
        self._chunks = chunks
        self._editors = editors
        self._samples = samples

    @contextmanager
    def on(self, head: torch.nn.Module) -> Iterator[None]:
        """With the head taken over."""
        handle = head.register_forward_pre_hook(self._run)
        try:
            yield
        finally:
            handle.remove()

    def _run(self, head: torch.nn.Module, args: tuple[Any, ...]) -> None:
        hidden = args[0] if args else None
        if not isinstance(hidden, torch.Tensor) or hidden.ndim != 3 or hidden.shape[0] != self._samples:
            raise CaptureFailed(f"{self._job.head}: the head was not given a row for each token of each text")
        self._take_input(hidden)
        padded, point = hidden.shape[1], len(self._job.reads) - 1
        if self._reader.due != point:
            raise CaptureFailed(f"{self._job.head} came before {self._job.reads[self._reader.due][0]}")
        # a choice of the last token alone needs no others
        start = padded - 1 if self._last_alone else 0
        size = 1  # until it is known how large a row is
        while start < padded:
            self._chunks.look_for_cancel()
            piece = head.forward(hidden[:, start : start + size])
            size = self._size(piece)
            for editor in self._editors:
                editor.edit_piece(self._job.head, piece, start=start, padded=padded)
            start += piece.shape[1]
            self._chunks.take(point, piece, after=padded - start)

    def _take_input(self, hidden: torch.Tensor) -> None:
        """What the head takes in, where that is no tensor that was seen before."""
        location = f"{place_of(self._job.head).path}.input"
        for editor in self._editors:
            editor.edit_piece(location, hidden, start=0, padded=hidden.shape[1])
        for point, (read, _) in enumerate(self._job.reads):
            if read == location:
                self._reader.show(point, hidden)

    @property
    def _last_alone(self) -> bool:
        return self._job.shaping.chooser is None and self._job.positions == "last_prompt"

    def _size(self, piece: torch.Tensor) -> int:
        """Tokens to compute at once."""
        room = max(_LEAST_PIECE_BYTES, self._job.options.device_buffer_bytes)
        return max(1, room // max(1, piece[:, :1].nbytes))
