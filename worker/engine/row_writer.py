"""The writer's half of the row path: keeps rows in host memory, hands chunks to the sink."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, Queue

import torch

from actograph.contract.errors import CaptureFailed
from worker.engine.chosen_rows import ChosenRows
from worker.engine.host_memory import host_copy, host_empty
from worker.engine.requests import BufferOptions, Positions, RowChunk, RowSink

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Point:
    """One tensor that is read at each step, and the hooks that it stands for."""

    hooks: tuple[str, ...]
    changed_later: bool = False  # the model overwrites it after it was read


@dataclass(frozen=True, slots=True)
class Strip:
    """Rows of one point for the whole batch: sample b has `tensor[b, starts[b]:]`."""

    point: int
    tensor: torch.Tensor  # [batch, tokens, width]
    starts: tuple[int, ...]
    first_rows: tuple[int, ...]  # row of tensor[b, starts[b]]
    ready: torch.cuda.Event | None = None

    def rows(self, sample: int) -> int:
        return self.tensor.shape[1] - self.starts[sample]


@dataclass(frozen=True, slots=True)
class Block:
    """Decode steps of all points, one tensor per group of points: [steps, batch, points, width].

    Sample b's first `counts[b]` steps are rows of its own; what follows is padding.
    """

    counts: tuple[int, ...]
    parts: tuple[torch.Tensor, ...]
    ready: tuple[torch.cuda.Event, ...] = ()


@dataclass(frozen=True, slots=True)
class _Held:
    """What the writer holds of a point for one sample."""

    first: int  # first row
    prompt: int  # rows in its strip
    decoded: int  # rows in the blocks, after those
    width: int
    dtype: torch.dtype
    group: int  # its group in the blocks; -1 before the first block

    @property
    def rows(self) -> int:
        return self.prompt + self.decoded


@dataclass(frozen=True, slots=True)
class Finish:
    """All rows are on their way; hand out what is left."""

    generated: tuple[int, ...]  # tokens per sample
    summaries: Sequence[Mapping[str, RowChunk]] = ()  # per sample, to go with its last rows


def stored_dtype(source: torch.dtype, asked: torch.dtype | None) -> torch.dtype:
    """The dtype that rows are stored in: integers (expert indices) are never made into fractions."""
    return asked if asked is not None and source.is_floating_point else source


def expected_rows(positions: Positions, prompt: int, generated: int, tail_only: bool) -> range:
    """The rows that a sample must have: all P+G-1 (P where nothing is generated), or the part that
    `positions` names.

    `tail_only` is for points that the model computes from the last prompt token on (logits).
    """
    start = prompt - 1 if tail_only else 0
    stop = prompt + max(0, generated - 1)
    if positions == "prompt":
        return range(start, prompt)
    if positions == "generated":
        return range(prompt, stop)
    if positions == "last":
        return range(stop - 1, stop)
    if positions == "last_prompt":
        return range(prompt - 1, prompt)
    return range(start, stop)


Item = Strip | Block | Finish


class RowWriter:
    """Keeps host blocks and hands chunks to the sink; everything here runs in the writer thread.

    Attributes:
        errors: sample -> what the sink raised for it; such a sample is written no more.
        failure: what ended the writer itself; the batch fails with it.
        dropped: set from outside to discard everything from now on.
    """

    def __init__(
        self,
        points: tuple[Point, ...],
        *,
        prompts: tuple[int, ...],
        indices: Sequence[int],
        positions: Positions,
        chosen: ChosenRows | None = None,
        keeps_rows: bool = True,
        dtype: torch.dtype | None,
        options: BufferOptions,
        sink: RowSink,
        queue: "Queue[Item | None]",
        errors: dict[int, BaseException] | None = None,
    ) -> None:
        self.errors: dict[int, BaseException] = {} if errors is None else errors
        self.failure: BaseException | None = None
        self.dropped = False
        self.groups: list[list[int]] = []
        self.shapes: list[tuple[int, torch.dtype]] = []
        self.tail_only: list[bool] = []
        self._points = points
        self._prompts = prompts
        self._indices = tuple(indices)
        self._positions = positions
        self._chosen = chosen
        self._keeps_rows = keeps_rows
        # the row after those of the prompt; rows are numbered by token, or by choice where there is one
        self._after_prompt = prompts if chosen is None else chosen.in_prompt
        self._dtype = dtype
        self._options = options
        self._sink = sink
        self._queue = queue
        self._strips: dict[int, list[Strip]] = {}  # of a point, one after the other
        self._blocks: list[Block] = []
        self._bytes = 0  # held for the batch
        self._sample_bytes = 0  # held for the fullest sample
        self._delivered = [[0] * len(points) for _ in prompts]
        self._next_row: list[list[int | None]] = [[None] * len(points) for _ in prompts]

    def run(self) -> None:
        try:
            with torch.no_grad():
                while (item := self._queue.get()) is not None:
                    if not self.dropped:
                        self._take(item)
                    if isinstance(item, Finish):
                        return
                    del item
        except BaseException as error:  # noqa: BLE001 (handed to the decode thread, which raises it)
            self.failure = error
        finally:
            self.clear()
            if self.failure is not None:
                self._drain()

    def clear(self) -> None:
        self._strips.clear()
        self._blocks.clear()
        self._bytes = self._sample_bytes = 0

    def _drain(self) -> None:
        while True:
            try:
                self._queue.get_nowait()
            except Empty:
                return

    def _take(self, item: Item) -> None:
        if isinstance(item, Finish):
            self._emit(item.summaries)
            if self._keeps_rows:
                self._complete(item.generated)
            return
        if isinstance(item, Strip):
            if item.ready is not None:
                item.ready.synchronize()
            tensor = self._stored(item.tensor, pinned=item.ready is not None)
            self._make_room(tensor)
            strip = Strip(item.point, tensor, item.starts, item.first_rows)
            self._strips.setdefault(item.point, []).append(strip)
            return
        for copied in item.ready:
            copied.synchronize()
        parts = tuple(self._stored(part, pinned=bool(item.ready)) for part in item.parts)
        self._make_room(*parts)
        self._blocks.append(Block(item.counts, parts))

    def _stored(self, tensor: torch.Tensor, *, pinned: bool) -> torch.Tensor:
        """The tensor as it is held: out of pinned memory, which is the next copy's.

        torch rounds a pinned tensor's size up to a power of two and never gives it back to the system, so no
        more of it is used than what is on its way.
        """
        dtype = stored_dtype(tensor.dtype, self._dtype)
        return host_copy(tensor, dtype) if pinned or tensor.dtype != dtype else tensor

    def _make_room(self, *tensors: torch.Tensor) -> None:
        """Account for tensors about to be kept; hand out what is held where they do not fit."""
        more = sum(t.numel() * t.element_size() for t in tensors)
        per_sample = more // len(self._prompts)
        if self._bytes and (
            self._bytes + more > self._options.host_buffer_bytes
            or self._sample_bytes + per_sample > self._options.shard_bytes
        ):
            self._emit()
        self._bytes += more
        self._sample_bytes += per_sample

    def _emit(self, summaries: Sequence[Mapping[str, RowChunk]] = ()) -> None:
        """Hand every sample's held rows to the sink and free them; summaries go with the last of them."""
        for sample in range(len(self._prompts)):
            if self.dropped:
                break
            if sample not in self.errors:
                self._emit_sample(sample, summaries[sample] if summaries else {})
        self.clear()

    def _emit_sample(self, sample: int, summary: Mapping[str, RowChunk]) -> None:
        held = self._held(sample)
        if not held:
            self._write(sample, summary)
            return
        total = sum(
            h.rows * h.width * h.dtype.itemsize * len(self._points[p].hooks)
            for h, points in held.items()
            for p in points
        )
        low, high = min(h.first for h in held), max(h.first + h.rows for h in held)
        size = -(-(high - low) // max(1, -(-total // self._options.shard_bytes)))
        for start in range(low, high, size):
            rows = self._assemble(sample, held, start, start + size)
            self._write(sample, rows if start + size < high else rows | dict(summary))

    def _held(self, sample: int) -> dict[_Held, list[int]]:
        """Points by what is held of them."""
        decoded = sum(block.counts[sample] for block in self._blocks)
        group_of = {p: i for i, group in enumerate(self.groups) for p in group}
        held: dict[_Held, list[int]] = {}
        for point, (width, dtype) in enumerate(self.shapes):
            strips = [s for s in self._strips.get(point, ()) if s.rows(sample)]
            prompt = sum(s.rows(sample) for s in strips)
            if strips:
                first = strips[0].first_rows[sample]
            else:
                first = self._next_row[sample][point] or self._after_prompt[sample]
            if prompt + decoded:
                key = _Held(first, prompt, decoded, width, dtype, group_of.get(point, -1))
                held.setdefault(key, []).append(point)
        return held

    def _assemble(
        self, sample: int, held: Mapping[_Held, Sequence[int]], start: int, stop: int
    ) -> dict[str, RowChunk]:
        """Rows [start, stop) of every held point; one allocation per key of `held`."""
        chunk: dict[str, RowChunk] = {}
        for h, points in held.items():
            low, high = max(h.first, start), min(h.first + h.rows, stop)
            if low >= high:
                continue
            hooks = [(place, hook) for place, p in enumerate(points) for hook in self._points[p].hooks]
            rows = host_empty((len(points), high - low, h.width), h.dtype)
            if low < h.first + h.prompt:
                self._copy_strips(sample, points, h, rows, low)
            if h.decoded:
                self._copy_blocks(sample, points, h, rows, low)
            if len(hooks) > len(points):  # hooks that name the same tensor get copies of their own
                places = torch.tensor([place for place, _ in hooks])
                each = host_empty((len(hooks), *rows.shape[1:]), h.dtype)
                rows = torch.index_select(rows, 0, places, out=each)
            for i, (_, hook) in enumerate(hooks):
                chunk[hook] = self._chunk(sample, low, rows[i])
            for p in points:
                self._next_row[sample][p] = high
                self._delivered[sample][p] += high - low
        return chunk

    def _chunk(self, sample: int, row: int, rows: torch.Tensor) -> RowChunk:
        if self._chosen is None:
            return RowChunk(row, rows)
        tokens = tuple(self._chosen.tokens[sample][row : row + rows.shape[0]])
        return RowChunk(tokens[0], rows, tokens)

    def _copy_strips(
        self, sample: int, points: Sequence[int], held: _Held, out: torch.Tensor, low: int
    ) -> None:
        """Copy the prompt rows of `points` to `out` [points, rows, width], which starts at row `low`."""
        pieces = [self._strips[p] for p in points]
        if any(len(strips) > 1 for strips in pieces):  # a prompt that was read in several pieces
            for place, strips in enumerate(pieces):
                for strip in strips:
                    own = strip.tensor[sample, strip.starts[sample] :]
                    _overlap(out[place], own, strip.first_rows[sample], low)
            return
        count = min(held.first + held.prompt - low, out.shape[1])
        skipped = low - held.first
        starts = [strip.starts[sample] + skipped for (strip,) in pieces]
        rows = [s.tensor[sample, start : start + count] for (s,), start in zip(pieces, starts, strict=True)]
        torch.stack(rows, out=out[:, :count])

    def _copy_blocks(
        self, sample: int, points: Sequence[int], held: _Held, out: torch.Tensor, low: int
    ) -> None:
        """Copy the decode rows of `points` to `out` [points, rows, width], which starts at row `low`."""
        members = self.groups[held.group]
        chosen = None if list(points) == members else [members.index(p) for p in points]
        row = held.first + held.prompt
        for block in self._blocks:
            rows = block.parts[held.group][: block.counts[sample], sample].transpose(0, 1)
            _overlap(out, rows if chosen is None else rows[chosen], row, low)
            row += block.counts[sample]

    def _write(self, sample: int, chunk: Mapping[str, RowChunk]) -> None:
        if not chunk or sample in self.errors:
            return
        try:
            self._sink.write(self._indices[sample], chunk)
        except Exception as error:
            log.warning("sample %s: its rows could not be stored", self._indices[sample], exc_info=error)
            self.errors[sample] = error.with_traceback(None)  # its frames hold the rows

    def _complete(self, generated: Sequence[int]) -> None:
        """Check that every sample got all its rows; name hooks that have none with empty tensors."""
        for sample, tokens in enumerate(generated):
            empty: dict[str, RowChunk] = {}
            for point, (width, dtype) in enumerate(self.shapes):
                rows = expected_rows(self._positions, self._prompts[sample], tokens, self.tail_only[point])
                due, nothing = len(rows), RowChunk(rows.start, torch.empty(0, width, dtype=dtype))
                if self._chosen is not None:
                    due = self._chosen.due(sample, tail_only=self.tail_only[point])
                    nothing = RowChunk(0, nothing.tensor, ())
                if self._delivered[sample][point] != due and sample not in self.errors:
                    self.errors[sample] = CaptureFailed(
                        f"{self._points[point].hooks[0]}: {self._delivered[sample][point]} rows were "
                        f"captured where {due} were due"
                    )
                if not due:
                    empty |= dict.fromkeys(self._points[point].hooks, nothing)
            self._write(sample, empty)


def _overlap(out: torch.Tensor, rows: torch.Tensor, first: int, low: int) -> None:
    """Copy `rows` [..., n, width], which begin at row `first`, to where `out` (from `low`) has them."""
    begin = max(first, low)
    end = min(first + rows.shape[-2], low + out.shape[-2])
    if begin < end:
        out[..., begin - low : end - low, :] = rows[..., begin - first : end - first, :]
