"""The row path: activation rows from the device to the sink, in bounded memory.

    decode thread                                   writer thread
    prefill: one tensor per point, as it is read -> unpadded slices of it
    decode:  copied step by step into one
             block per width and dtype           -> the block [k, batch, points, width]
                                                    every so often: a chunk per sample -> sink

On a GPU a tensor or block is copied to pinned memory on a side stream, and the decode loop never
waits for it; a model on several devices has blocks and side streams on each of them. A bounded queue
between the threads makes decoding wait for a slow disk. The writer keeps at most `host_buffer_bytes`
of a batch, then hands every sample's rows to the sink and frees them; so neither host nor device
memory depends on max_tokens. What is held on the host lies outside malloc's heap (`host_memory`).
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Full, Queue

import torch

from actograph.contract.errors import CaptureFailed
from actograph.contract.row_selection import NamedPositions
from worker.engine.locations import Point
from worker.engine.model.host_memory import host_copy
from worker.engine.requests import BufferOptions, EarlierRows, RowChooser, RowShaping, RowSink
from worker.engine.rows.held_rows import Block, Strip
from worker.engine.rows.row_writer import Finish, Item, RowWriter, stored_dtype
from worker.engine.rows.selection import ChosenRows, Columns, gather_steps
from worker.engine.rows.step_blocks import Group, StepBlocks, groups_of
from worker.engine.rows.summaries import Summaries

_POLL_SECONDS = 0.1
#: seconds that a busy writer has after a stop
_STOP_PATIENCE_SECONDS = 10.0
_AS_COMPUTED = RowShaping()


class RowStream:
    """Takes the tensors of one batch in the decode thread, delivers rows in a writer thread.

    Args:
        points: in the order in which they will be handed over.
        prompt_lengths: tokens per sample, without padding.
        padded_length: of the prompts in this batch (left padding).
        indices: the samples' indices as the sink knows them.
        dtype: dtype of stored floats; None keeps the model's.
        shaping: selection and reduction on the device.
        ended_at: live view: tokens after which each sample ended, None while it runs.
        prompt_ids, generated_ids: tokens of each sample, the latter a live view; choosers need them.
        choosers: one per sample, instead of the shaping's.
        earlier: summaries of earlier turns, one per sample.
        should_stop: polled while decoding has to wait for the writer.

    Raises (from any method): the writer's error, if the writer failed.
    """

    def __init__(
        self,
        points: Sequence[Point],
        *,
        prompt_lengths: Sequence[int],
        padded_length: int,
        indices: Sequence[int],
        positions: NamedPositions,
        dtype: torch.dtype | None,
        options: BufferOptions,
        sink: RowSink,
        ended_at: Sequence[int | None],
        shaping: RowShaping = _AS_COMPUTED,
        prompt_ids: Sequence[Sequence[int]] = (),
        generated_ids: Sequence[Sequence[int]] = (),
        choosers: Sequence[RowChooser | None] = (),
        earlier: Sequence[EarlierRows | None] = (),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._points = tuple(points)
        self._prompts = tuple(prompt_lengths)
        self._padded = padded_length
        self._positions = positions
        self._dtype = dtype
        self._columns = Columns(shaping.columns)
        each = [c for c in choosers or [shaping.chooser] * len(self._prompts) if c is not None]
        self._chosen = ChosenRows(each, prompt_ids, generated_ids) if each else None
        self._keeps_rows = shaping.keeps_rows
        self._summaries: Summaries | None = None
        if shaping.summarises:
            self._summaries = Summaries(
                self._points, batch=len(prompt_lengths), shaping=shaping, dtype=dtype, earlier=earlier
            )
        self._options = options
        self._ended_at = ended_at
        self._should_stop = should_stop
        self._widths: list[int] = []  # per point
        self._groups: list[Group] = []
        self._blocks: StepBlocks | None = None  # from the first decode step on
        self._pending_kept: list[tuple[bool, ...]] = []  # with a chooser: which samples keep the step
        self._steps = 0  # decode steps taken
        self._stop_seen_at: float | None = None
        self._latest: list[torch.Tensor] = []  # positions="last": the newest step
        self._last: dict[int, list[torch.Tensor]] = {}  # the same, of samples that ended
        self._copy_streams: dict[torch.device, torch.cuda.Stream] = {}
        self._queue: Queue[Item | None] = Queue(options.queue_blocks)
        self._writer = RowWriter(
            self._points,
            prompts=self._prompts,
            indices=indices,
            positions=positions,
            chosen=self._chosen,
            keeps_rows=self._keeps_rows,
            dtype=dtype,
            options=options,
            sink=sink,
            queue=self._queue,
        )
        self._thread = threading.Thread(target=self._writer.run, name="row-writer", daemon=True)
        self._thread.start()

    @property
    def errors(self) -> Mapping[int, BaseException]:
        """Sample of the batch -> what its sink raised."""
        return self._writer.errors

    # decode thread

    def prefill(self, point: int, tensor: torch.Tensor, *, after: int = 0) -> None:
        """Hand over a point's prompt rows: [batch, tokens, ...]; call once per point, in order.

        `tokens` is the padded length, or less where the model computes the last tokens only. A
        tensor that is made piece by piece is handed over so, each piece with the number of tokens
        `after` it.
        """
        tokens = tensor.shape[1]
        if tensor.shape[0] != len(self._prompts) or tokens + after > self._padded:
            raise CaptureFailed(
                f"{self._points[point].hooks[0]}: the prompt gave a tensor of shape {tuple(tensor.shape)} "
                f"for {len(self._prompts)} samples of {self._padded} tokens"
            )
        if tensor.ndim != 3:
            tensor = tensor.reshape(tensor.shape[0], tokens, -1)
        if point == len(self._widths):
            self._begin(point, tensor, tail_only=tokens + after < self._padded)
        if self._chosen is not None:
            found = self._chosen.of_prompt(self._columns.of(tensor), after)
            if found.tensor.shape[1]:
                self._strip(point, found.tensor, found.starts, found.first_rows)
            return
        if self._positions == "generated":
            return
        if self._positions in ("last", "last_prompt"):
            if after:
                return
            tensor = tensor[:, -1:].clone()
            tokens = 1
            if self._positions == "last":
                self._latest.append(tensor)
                return
        tensor = self._columns.of(tensor)
        if _is_small_view(tensor):
            tensor = tensor.clone()
        firsts = tuple(p - after - tokens for p in self._prompts)  # below 0: padding
        starts = tuple(min(tokens, max(0, -first)) for first in firsts)
        self._strip(point, tensor, starts, tuple(f + s for f, s in zip(firsts, starts, strict=True)))

    def _begin(self, point: int, tensor: torch.Tensor, *, tail_only: bool) -> None:
        """Record a point's shape, from its first tensor [batch, tokens, width]."""
        self._widths.append(tensor.shape[2])
        width = self._columns.width(tensor.shape[2], self._points[point].hooks[0])
        self._writer.tail_only.append(tail_only)
        self._writer.held.shapes.append((width, stored_dtype(tensor.dtype, self._dtype)))
        if self._summaries is not None:
            self._summaries.begin(point, self._columns.of(tensor))

    def _strip(
        self, point: int, tensor: torch.Tensor, starts: tuple[int, ...], first_rows: tuple[int, ...]
    ) -> None:
        """Summarise rows of one point, queue them for the writer, or both."""
        if self._summaries is not None:
            self._summaries.of_strip(point, tensor, starts)
        if self._keeps_rows:
            host, ready = self._to_host(tensor)
            self._put(Strip(point, host, starts, first_rows, ready))

    def decode(self, values: list[torch.Tensor]) -> None:
        """Hand over one step: a tensor [batch, 1, ...] per point."""
        if self._blocks is None:
            self._blocks = self._begin_decode(values)
        self._steps += 1
        if self._chosen is not None:
            kept = self._chosen.judge(self._steps - 1, self._ended_at)
            if not any(kept):
                return
            self._pending_kept.append(kept)
        if self._positions in ("all", "generated"):
            self._blocks.add(values)
            if self._blocks.full:
                self._flush()
        elif self._positions == "last":
            self._keep_last(values)

    def give_up(self, samples: Iterable[int]) -> None:
        """Write nothing more of these samples: they were cancelled."""
        for sample in samples:
            self._writer.errors.setdefault(sample, CaptureFailed("the sample was cancelled"))

    @property
    def dropped(self) -> bool:
        """True if rows were dropped: `should_stop` returned True and the writer did not catch up in time."""
        return self._writer.dropped

    def finish(self, generated: Sequence[int]) -> bool:
        """Hand over the rest and wait for the sink. `generated`: tokens per sample.

        Returns:
            False if rows were dropped: the batch counts as cancelled.
        """
        if self._blocks is not None and self._blocks.steps:
            self._flush()
        if self._positions == "last":
            self._finish_last(generated)
        self._put(Finish(tuple(generated), self._summaries.chunks() if self._summaries is not None else ()))
        if self.dropped:
            return False
        self._thread.join()
        self._check()
        return True

    def close(self) -> None:
        """End the writer and drop unwritten rows; safe to call at any time."""
        self._writer.dropped = True
        while self._thread.is_alive():
            try:
                self._queue.put(None, timeout=_POLL_SECONDS)
            except Full:
                continue
            self._thread.join()
        if self._blocks is not None:
            self._blocks.clear()
        self._pending_kept.clear()
        self._latest.clear()
        self._last.clear()
        if self._summaries is not None:
            self._summaries.clear()
        self._writer.held.clear()

    def _begin_decode(self, values: Sequence[torch.Tensor]) -> StepBlocks:
        for i, (value, width) in enumerate(zip(values, self._widths, strict=True)):
            if value.shape[:2] != (len(self._prompts), 1) or value[0, 0].numel() != width:
                raise CaptureFailed(
                    f"{self._points[i].hooks[0]}: a decode step gave a tensor of shape "
                    f"{tuple(value.shape)}, not one row of {width} per sample"
                )
        self._groups = groups_of(values)
        self._writer.held.groups = [list(group.points) for group in self._groups]
        step_bytes = sum(v.numel() * v.element_size() for v in values)
        fit = self._options.device_buffer_bytes // max(step_bytes, 1)
        steps = max(1, min(fit, self._options.max_block_steps))
        return StepBlocks(self._groups, batch=len(self._prompts), steps=steps)

    def _flush(self) -> None:
        """Move the pending steps on as one block."""
        assert self._blocks is not None
        blocks = self._blocks.take()
        kept, self._pending_kept = self._pending_kept, []
        steps = blocks[0].shape[0]
        if self._chosen is not None:
            counts = tuple(map(sum, zip(*kept, strict=True)))
        else:
            first = self._steps - steps  # the step that gave row prompt + first
            counts = tuple(
                steps if end is None else min(steps, max(0, end - 1 - first)) for end in self._ended_at
            )
        if not any(counts):
            return
        parts: list[torch.Tensor] = []
        copies: list[torch.cuda.Event] = []
        for group, block in zip(self._groups, blocks, strict=True):
            rows = self._columns.of(block)
            if self._chosen is not None:
                rows = gather_steps(rows, kept)
            if self._summaries is not None:
                self._summaries.of_steps(group.points, rows, counts)
            if not self._keeps_rows:
                continue
            if rows.is_cuda:
                rows, ready = self._to_host(rows)
                copies += [ready] if ready is not None else []
            elif rows is not block:
                rows = host_copy(rows, stored_dtype(rows.dtype, self._dtype))
            parts.append(rows)
        if self._keeps_rows:
            self._put(Block(counts, tuple(parts), tuple(copies), self._complete()))

    def _complete(self) -> tuple[int, ...]:
        """Samples to hand out while the others run; none if summaries follow with the last rows."""
        early = self._options.hand_out_early
        if self._summaries is not None or not (early or (early is None and self._copy_streams)):
            return ()
        return tuple(s for s, end in enumerate(self._ended_at) if end is not None and end - 1 <= self._steps)

    def _to_host(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        """The tensor in pinned memory, and when it will be there; on the CPU the tensor itself.

        Waiting for the event sleeps and does not spin.
        """
        if not tensor.is_cuda:
            return tensor, None
        tensor = tensor.to(stored_dtype(tensor.dtype, self._dtype))
        stream = self._copy_streams.get(tensor.device)
        if stream is None:
            stream = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
            self._copy_streams[tensor.device] = stream
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            host.copy_(tensor, non_blocking=True)
            ready = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            ready.record(stream)
        if self._options.wait_for_copies:
            ready.synchronize()  # so that the allocator may use the tensor's memory at once
        else:
            tensor.record_stream(stream)
        return host, ready

    def _keep_last(self, values: list[torch.Tensor]) -> None:
        for sample, end in enumerate(self._ended_at):
            if end is not None and end <= self._steps and sample not in self._last:
                self._last[sample] = [v[sample, -1].clone() for v in self._latest]
        self._latest = values

    def _finish_last(self, generated: Sequence[int]) -> None:
        first = tuple(p + g - 2 for p, g in zip(self._prompts, generated, strict=True))
        for i, latest in enumerate(self._latest):
            rows = latest.reshape(latest.shape[0], 1, -1).clone()
            for sample, kept in self._last.items():
                rows[sample, 0] = kept[i].reshape(-1)
            self._strip(i, self._columns.of(rows), (0,) * len(self._prompts), first)

    def _put(self, item: Item) -> None:
        while not self.dropped:
            self._check()
            try:
                self._queue.put(item, timeout=_POLL_SECONDS)
                return
            except Full:
                if not self._should_stop():
                    continue
                self._stop_seen_at = self._stop_seen_at or time.monotonic()
                if time.monotonic() - self._stop_seen_at > _STOP_PATIENCE_SECONDS:
                    self._writer.dropped = True

    def _check(self) -> None:
        if self._writer.failure is not None:
            raise self._writer.failure


def _is_small_view(tensor: torch.Tensor) -> bool:
    """Whether this tensor keeps much more memory alive than its own."""
    return tensor.untyped_storage().nbytes() > 2 * tensor.numel() * tensor.element_size()
