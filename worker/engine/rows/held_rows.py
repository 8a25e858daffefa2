"""Rows of a batch in host memory, and chunks of single samples made from them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from worker.engine.locations import Point
from worker.engine.model.host_memory import host_empty
from worker.engine.requests import RowChunk
from worker.engine.rows.selection import ChosenRows


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

    The first `counts[b]` steps of sample b are its rows; padding follows. `complete` lists samples without
    further rows: theirs may go to the sink before the others'.
    """

    counts: tuple[int, ...]
    parts: tuple[torch.Tensor, ...]
    ready: tuple[torch.cuda.Event, ...] = ()
    complete: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Held:
    """Rows held of a point for one sample."""

    first: int  # first row
    prompt: int  # rows in its strip
    decoded: int  # rows in the blocks, after those
    width: int
    dtype: torch.dtype
    group: int  # its group in the blocks; -1 before the first block

    @property
    def rows(self) -> int:
        return self.prompt + self.decoded


class HeldRows:
    """Strips and blocks of a batch until they go to the sink.

    Attributes:
        shapes: width and dtype of each point; the reader sets them.
        groups: points of each group; set before the first block.
        delivered: number of rows in chunks so far, per sample and point.
        bytes: bytes held for the batch.
        sample_bytes: bytes held for one sample, with padding.
    """

    def __init__(
        self, points: Sequence[Point], *, prompts: Sequence[int], chosen: ChosenRows | None = None
    ) -> None:
        self.shapes: list[tuple[int, torch.dtype]] = []
        self.groups: list[list[int]] = []
        self.delivered = [[0] * len(points) for _ in prompts]
        self.bytes = self.sample_bytes = 0
        self._points = points
        self._chosen = chosen
        # first row after the prompt; rows are numbered by token, or by choice with a chooser
        self._after_prompt = prompts if chosen is None else chosen.in_prompt
        self._strips: dict[int, list[Strip]] = {}  # of a point, one after the other
        self._blocks: list[Block] = []
        self._next_row: list[list[int | None]] = [[None] * len(points) for _ in prompts]

    def add(self, item: Strip | Block) -> None:
        if isinstance(item, Strip):
            self._strips.setdefault(item.point, []).append(item)
        else:
            self._blocks.append(item)
        size = size_of(item)
        self.bytes += size
        self.sample_bytes += size // len(self.delivered)

    def clear(self) -> None:
        self._strips.clear()
        self._blocks.clear()
        self.bytes = self.sample_bytes = 0

    def chunks(self, sample: int, most_bytes: int) -> Iterator[tuple[dict[str, RowChunk], bool]]:
        """Held rows of a sample in row order, in chunks of about `most_bytes`; True with the last chunk.

        Safe to call for several samples at once; call it once per sample. Rows stay until `clear`.
        """
        held = self._held(sample)
        if not held:
            return
        total = sum(
            h.rows * h.width * h.dtype.itemsize * len(self._points[p].hooks)
            for h, points in held.items()
            for p in points
        )
        low, high = min(h.first for h in held), max(h.first + h.rows for h in held)
        size = -(-(high - low) // max(1, -(-total // most_bytes)))
        for start in range(low, high, size):
            yield self._assemble(sample, held, start, start + size), start + size >= high

    def _held(self, sample: int) -> dict[_Held, list[int]]:
        """Points grouped by the rows held of them."""
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
                self.delivered[sample][p] += high - low
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


def size_of(item: Strip | Block) -> int:
    """Bytes of its tensors."""
    tensors = (item.tensor,) if isinstance(item, Strip) else item.parts
    return sum(t.numel() * t.element_size() for t in tensors)


def _overlap(out: torch.Tensor, rows: torch.Tensor, first: int, low: int) -> None:
    """Copy `rows` [..., n, width], which begin at row `first`, to where `out` (from `low`) has them."""
    begin = max(first, low)
    end = min(first + rows.shape[-2], low + out.shape[-2])
    if begin < end:
        out[..., begin - low : end - low, :] = rows[..., begin - first : end - first, :]
