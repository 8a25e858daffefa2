"""Writer thread of the row path: keeps rows in host memory and hands chunks to the sink."""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import Empty, Queue

import torch

from actograph.contract.errors import CaptureFailed
from actograph.contract.row_selection import NamedPositions, Selection
from worker.engine.locations import Point
from worker.engine.model.host_memory import host_copy
from worker.engine.requests import BufferOptions, RowChunk, RowSink
from worker.engine.rows.held_rows import Block, HeldRows, Strip, size_of
from worker.engine.rows.selection import ChosenRows

log = logging.getLogger(__name__)

#: samples written at once, and the bytes of each from which threads are worth it
_AT_ONCE = 4
_WORTH_A_THREAD = 1 << 20


@dataclass(frozen=True, slots=True)
class Finish:
    """End of a batch: hand out the remaining rows."""

    generated: tuple[int, ...]  # tokens per sample
    summaries: Sequence[Mapping[str, RowChunk]] = ()  # per sample, to go with its last rows


def stored_dtype(source: torch.dtype, asked: torch.dtype | None) -> torch.dtype:
    """Dtype in which rows are stored; integers (expert indices) stay integers."""
    return asked if asked is not None and source.is_floating_point else source


def expected_rows(positions: NamedPositions, prompt: int, generated: int, tail_only: bool) -> range:
    """Expected rows of a sample: those of `positions` among all P+G-1 (P if nothing is generated).

    Args:
        tail_only: the model computes the point from the last prompt token on (logits).
    """
    first, stop = prompt - 1 if tail_only else 0, prompt + max(0, generated - 1)
    rows = Selection.of(positions, prompt).rows(first, prompt, stop)
    assert isinstance(rows, range)
    return rows


Item = Strip | Block | Finish


class RowWriter:
    """Keeps rows in host memory and hands chunks to the sink, in the writer thread.

    Several threads write large chunks, since the device waits at the end of a batch. If the model computes on
    the same cores, one thread writes.

    Attributes:
        held: rows that are not in the sink yet.
        errors: sample -> error of its sink; nothing more is written of such a sample.
        failure: error of the writer itself; the batch fails with it.
        dropped: set from outside to discard everything from now on.
    """

    def __init__(
        self,
        points: tuple[Point, ...],
        *,
        prompts: tuple[int, ...],
        indices: Sequence[int],
        positions: NamedPositions,
        chosen: ChosenRows | None = None,
        keeps_rows: bool = True,
        dtype: torch.dtype | None,
        options: BufferOptions,
        sink: RowSink,
        queue: "Queue[Item | None]",
    ) -> None:
        self.errors: dict[int, BaseException] = {}
        self.failure: BaseException | None = None
        self.dropped = False
        self.held = HeldRows(points, prompts=prompts, chosen=chosen)
        self.tail_only: list[bool] = []
        self._points = points
        self._prompts = prompts
        self._indices = tuple(indices)
        self._positions = positions
        self._chosen = chosen
        self._keeps_rows = keeps_rows
        self._dtype = dtype
        self._options = options
        self._sink = sink
        self._queue = queue
        self._handed_out: set[int] = set()  # samples of which nothing more is held

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
            self.held.clear()
            if self.failure is not None:
                self._drain()

    def _drain(self) -> None:
        while True:
            try:
                self._queue.get_nowait()
            except Empty:
                return

    def _take(self, item: Item) -> None:
        if isinstance(item, Finish):
            self._emit(item.summaries, at_once=_AT_ONCE)
            if self._keeps_rows:
                self._complete(item.generated)
            return
        copies = item.ready if isinstance(item, Block) else [item.ready] if item.ready is not None else []
        for copied in copies:
            copied.synchronize()
        pinned = bool(copies)
        stored: Strip | Block
        if isinstance(item, Strip):
            stored = replace(item, tensor=self._stored(item.tensor, pinned=pinned), ready=None)
        else:
            parts = tuple(self._stored(part, pinned=pinned) for part in item.parts)
            stored = replace(item, parts=parts, ready=())
        at_once = _AT_ONCE if pinned else 1
        if not self._has_room(size_of(stored)):
            self._emit(at_once=at_once)
        self.held.add(stored)
        if isinstance(item, Block) and item.complete:
            self._hand_out(item.complete, at_once=at_once)
            self._handed_out.update(item.complete)

    def _stored(self, tensor: torch.Tensor, *, pinned: bool) -> torch.Tensor:
        """Copy a tensor out of pinned memory, which the next copy needs.

        torch rounds a pinned tensor's size up to a power of two and never returns it to the system, so only
        rows on their way use it.
        """
        dtype = stored_dtype(tensor.dtype, self._dtype)
        return host_copy(tensor, dtype) if pinned or tensor.dtype != dtype else tensor

    def _has_room(self, more: int) -> bool:
        """Whether `more` bytes fit beside the held rows."""
        held, options = self.held, self._options
        return not held.bytes or (
            held.bytes + more <= options.host_buffer_bytes
            and held.sample_bytes + more // len(self._prompts) <= options.shard_bytes
        )

    def _emit(self, summaries: Sequence[Mapping[str, RowChunk]] = (), *, at_once: int) -> None:
        """Hand every sample's held rows to the sink and free them; summaries go with the last of them."""
        self._hand_out(range(len(self._prompts)), summaries, at_once=at_once)
        self.held.clear()

    def _hand_out(
        self, samples: Sequence[int], summaries: Sequence[Mapping[str, RowChunk]] = (), *, at_once: int
    ) -> None:
        """Write the held rows of these samples, up to `at_once` at a time and one shard's bytes in all."""

        def emit(sample: int) -> None:
            if not self.dropped and sample not in self.errors:
                with torch.no_grad():  # each thread's own
                    self._emit_sample(sample, summaries[sample] if summaries else {})

        due = [sample for sample in samples if sample not in self._handed_out]
        shard = self._options.shard_bytes
        size = min(max(1, self.held.sample_bytes), shard)
        threads = min(at_once, len(due), shard // size)
        if threads < 2 or size < _WORTH_A_THREAD:
            for sample in due:
                emit(sample)
            return
        with ThreadPoolExecutor(threads, thread_name_prefix="row-writer") as pool:
            for _ in pool.map(emit, due):  # raises what a thread raised
                pass

    def _emit_sample(self, sample: int, summary: Mapping[str, RowChunk]) -> None:
        """Write a sample's rows; the summary goes with the last of them, so one shard stays one shard."""
        left = dict(summary)
        for chunk, is_last in self.held.chunks(sample, self._options.shard_bytes):
            self._write(sample, chunk | left if is_last else chunk)
            left = {} if is_last else left
            del chunk  # before the next one is made
        self._write(sample, left)

    def _write(self, sample: int, chunk: Mapping[str, RowChunk]) -> None:
        if not chunk or sample in self.errors:
            return
        try:
            self._sink.write(self._indices[sample], chunk)
        except Exception as error:
            log.warning("sample %s: its rows could not be stored", self._indices[sample], exc_info=error)
            self.errors[sample] = error.with_traceback(None)  # its frames hold the rows

    def _complete(self, generated: Sequence[int]) -> None:
        """Check that every sample has all its rows; write empty tensors for hooks without rows."""
        for sample, tokens in enumerate(generated):
            empty: dict[str, RowChunk] = {}
            for point, (width, dtype) in enumerate(self.held.shapes):
                rows = expected_rows(self._positions, self._prompts[sample], tokens, self.tail_only[point])
                due, nothing = len(rows), RowChunk(rows.start, torch.empty(0, width, dtype=dtype))
                if self._chosen is not None:
                    due = self._chosen.due(sample, tail_only=self.tail_only[point])
                    nothing = RowChunk(0, nothing.tensor, ())
                if self.held.delivered[sample][point] != due and sample not in self.errors:
                    self.errors[sample] = CaptureFailed(
                        f"{self._points[point].hooks[0]}: {self.held.delivered[sample][point]} rows were "
                        f"captured, {due} expected"
                    )
                if not due:
                    empty |= dict.fromkeys(self._points[point].hooks, nothing)
            self._write(sample, empty)
