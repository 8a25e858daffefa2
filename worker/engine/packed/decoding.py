"""Decode passes of fixed shapes, which a CUDA graph can replay.

A pass of one token per request is filled up to a bucket of rows. All that changes between two passes stands
in tensors that stay where they are: newest tokens, positions, arena places, and ranges. So a pass makes
the same calls on the same memory every time, and neither its shapes nor its calls depend on data.

A graph is captured for each bucket when the model is loaded, and with copies of hooks and changes of edits
when these open. It is known by what it writes to, which stays where it is as long as the model is loaded: it
serves every run in which the same captures and edits are open. It is verified against the same pass run
eagerly (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs).
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evals.plans import GPU_SPARE
from worker.engine.packed.arena import Arena
from worker.engine.packed.step import Lengths, Step
from worker.engine.pass_hooks import PassHooks
from worker.engine.slot import Slot
from worker.engine.structure.comparison import alike

log = logging.getLogger(__name__)

_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
#: sets of captures and edits whose graphs are kept, beside those of passes without any, at most; and no more
#: than take half of the memory that no run takes
_MOST_SETS = 8

#: ids and positions, [1, rows] each, and the step -> logits [rows, vocabulary]
RunModel = Callable[[Tensor, Tensor, Step], Tensor]


class FixedPass:
    """Runs decode passes with fixed shapes, one call after the other.

    Args:
        run: the model with its hooks.
        next_ids: the newest token of each slot, by the number of its sampler's entry.
        most: rows of the largest pass.
        context: most tokens of a request.

    Attributes:
        buckets: numbers of rows, ascending.
    """

    def __init__(
        self,
        run: RunModel,
        arena: Arena,
        next_ids: Tensor,
        device: torch.device,
        *,
        most: int,
        context: int,
    ) -> None:
        self._run, self._arena, self._device, self._context = run, arena, device, context
        self._next_ids = next_ids
        self._most = most
        self.buckets = [*(bucket for bucket in _BUCKETS if bucket < most), most]
        pinned = device.type == "cuda"
        # two, in turns: when a pass is filled in, the last one's numbers may still be on their way
        self._hosts = [torch.zeros(5, most + 1, dtype=torch.int64, pin_memory=pinned) for _ in range(2)]
        self._numbers = torch.zeros(5, most + 1, dtype=torch.int64, device=device)
        self._queries = torch.arange(most + 1, dtype=torch.int32, device=device)
        self._logits: Tensor | None = None

    def takes(self, slots: Sequence[Slot]) -> bool:
        """Whether a pass takes the newest token of each slot, with edits in the tables."""
        return 0 < len(slots) <= self._most and all(
            slot.count == slot.logits == 1
            and not slot.prefills
            and (not slot.writes or slot.edit_rows is not None)
            for slot in slots
        )

    def bucket(self, slots: Sequence[Slot]) -> int:
        """Rows of the pass that these fill."""
        return next(bucket for bucket in self.buckets if bucket >= len(slots))

    def fill(self, slots: Sequence[Slot], rows: int) -> None:
        """Write a pass's numbers; rows without a request read and write the arena's unused place."""
        self._hosts.reverse()
        host, count, unused = self._hosts[0].numpy(), len(slots), self._arena.tokens
        host[:, count : rows + 1] = [[0], [0], [unused], [unused], [1]]
        for row, slot in enumerate(slots):
            begin, number = slot.cache.start, slot.computed
            assert slot.sampler is not None
            host[:, row] = slot.sampler.number, number, begin + number, begin, slot.stop
        self._numbers.copy_(self._hosts[0], non_blocking=True)

    def forward(self, rows: int) -> Tensor:
        """Run the pass that was filled in. Returns logits [rows, vocabulary], until the next pass."""
        numbers, arena = self._numbers, self._arena
        lengths = Lengths(
            self._queries[: rows + 1],
            numbers[3, : rows + 1].int(),
            numbers[4, :rows].int(),
            most_queries=1,
            most_used=self._context,
        )
        step = Step(
            arena.keys,
            arena.values,
            spans=(),
            chunks=(),
            fused=True,
            known_places={self._device: numbers[2, :rows]},
            known_lengths={self._device: lengths},
        )
        ids = self._next_ids.index_select(0, numbers[0, :rows])
        logits = self._run(ids[None], numbers[1:2, :rows], step)
        if self._logits is None:
            self._logits = logits.new_empty(self._most, logits.shape[-1])
        return self._logits[:rows].copy_(logits)


class _Graph(NamedTuple):
    graph: Any
    logits: Tensor | None  # None: it could not be captured
    copies: Sequence[object]  # kept, so that no other has the id in the graph's key


class Replays:
    """Decode passes as CUDA graphs, as long as they give what the eager pass gives.

    A graph belongs to a number of rows and to the captures and edits that are open. Graphs are captured when
    a model is loaded and when a capture or an edit opens, and never by a pass: a pass without a graph runs
    eagerly. Those of the sets of captures and edits that were open last are kept.
    """

    def __init__(self, fixed: FixedPass, device: torch.device) -> None:
        self._fixed, self._device = fixed, device
        #: by what they write to, the set that was open last at the end, then by rows
        self._sets: dict[Hashable, dict[int, _Graph]] = {}
        self._pool: Any = None
        self._broken = False
        self._most_sets = _MOST_SETS

    def takes(self, slots: Sequence[Slot]) -> bool:
        return not self._broken and self._fixed.takes(slots)

    def run(self, slots: Sequence[Slot], at_hooks: PassHooks) -> Tensor | None:
        """Run a pass. Returns the slots' logits; None if it has no graph, and is still to run."""
        rows = self._fixed.bucket(slots)
        at_hooks.begin(slots, padded=rows)
        graph = self._sets.get(at_hooks.memory, {}).get(rows)
        if graph is None or graph.logits is None:
            return None
        self._fixed.fill(slots, rows)
        graph.graph.replay()
        return graph.logits[: len(slots)]

    def prepare(self, at_hooks: PassHooks, hook: Callable[[PassHooks], None]) -> None:
        """Capture the graphs of all numbers of rows, with the captures that are open now.

        Args:
            hook: puts the hooks of a pass on the model.
        """
        if self._broken:
            return
        at_hooks.begin((), padded=self._fixed.buckets[-1])
        key = at_hooks.memory
        graphs = self._sets[key] = self._sets.pop(key, {})
        spare = [other for other in self._sets if other and other != key]
        for other in spare[: max(0, len(spare) + 1 - self._most_sets)]:
            del self._sets[other]
        free = _driver_bytes(self._device)
        for rows in reversed(self._fixed.buckets):  # the largest one decides about the memory of all
            if rows in graphs:
                continue
            at_hooks.begin((), padded=rows)
            self._fixed.fill((), rows)
            try:
                hook(at_hooks)
                graphs[rows] = self._capture(rows, at_hooks)
            except Exception as error:  # noqa: BLE001 (the eager pass serves)
                # the error of a failed capture reads like that of a lost device, which alone fails here
                torch.cuda.synchronize(self._device)
                if not key:
                    log.warning("decode passes are not replayed as CUDA graphs: %s", error)
                    self._broken = True
                    self.close()
                    return
                log.warning("decode passes with these captures and edits are not replayed: %s", error)
                graphs.update(dict.fromkeys(self._fixed.buckets, _Graph(None, None, at_hooks.copies)))
        took = free - _driver_bytes(self._device)
        if took > 0:
            self._most_sets = max(1, min(_MOST_SETS, GPU_SPARE // 2 // took - 1))

    def close(self) -> None:
        """Let go of all graphs and their memory."""
        self._sets.clear()
        self._pool = None

    def _capture(self, rows: int, at_hooks: PassHooks) -> _Graph:
        """Capture the pass, and hold it against the eager one. Raises RuntimeError if they differ."""
        device = self._device
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        at_hooks.try_out(0, rows, from_tables=True)
        with torch.cuda.stream(stream):  # what is made at the first call is made outside the graph
            self._fixed.forward(rows)
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # other threads may call CUDA meanwhile
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            logits = self._fixed.forward(rows)
        for number in range(at_hooks.trials):
            at_hooks.try_out(number, rows, from_tables=False)
            due = [self._fixed.forward(rows).clone(), *_written(at_hooks)]
            at_hooks.try_out(number, rows, from_tables=True)
            logits.zero_()
            for slab, places in at_hooks.written():
                slab.index_fill_(0, places, 0)
            graph.replay()
            for got, wanted in zip((logits, *_written(at_hooks)), due, strict=True):
                if not (alike(got, wanted, wanted) if got.is_floating_point() else torch.equal(got, wanted)):
                    raise RuntimeError(f"a replayed pass of {rows} rows gives other numbers")
        return _Graph(graph, logits, at_hooks.copies)


def _driver_bytes(device: torch.device) -> int:
    """Free bytes of a device and those of torch's allocator: less by what the driver has taken meanwhile."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device)


def _written(at_hooks: PassHooks) -> list[Tensor]:
    """Copies of all rows that a pass has written."""
    return [slab.index_select(0, places) for slab, places in at_hooks.written()]
