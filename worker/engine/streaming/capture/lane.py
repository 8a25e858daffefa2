"""Capture in packed steps: hooks copy the kept rows of a step to the requests' places."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from actograph.contract.errors import CaptureFailed
from worker.engine.locations import ModelHooks, Point, place_of
from worker.engine.requests import BufferOptions, GenerationRequest
from worker.engine.rows.selection import Columns
from worker.engine.runs import CapturePlan
from worker.engine.streaming.capture.buffers import PointShape, RowBuffers, row_bytes
from worker.engine.streaming.capture.modules import at_module, tokens_first
from worker.engine.streaming.capture.record import Kept, RowRecord

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class _Rows:
    """Rows of one step to copy: from places of a tensor to places of the buffers."""

    def __init__(self) -> None:
        self._sources: list[int] = []
        self._targets: list[int] = []
        self.source: Tensor | None = None  # None: every row of the tensor, in order
        self.target: Tensor | None = None  # None: no row
        self.count = 0  # rows of the tensor

    def add(self, source: int, target: int) -> None:
        self._sources.append(source)
        self._targets.append(target)

    def ready(self, count: int, device: torch.device) -> None:
        """Make the indices of a tensor of `count` rows, and begin anew."""
        sources, targets = self._sources, self._targets
        self._sources, self._targets = [], []
        self.count, self.target = count, None
        if not targets:
            return
        self.target = torch.tensor(targets, device=device)
        whole = len(sources) == count and sources == list(range(count))
        self.source = None if whole else torch.tensor(sources, device=device)


class Lane:
    """Capture of all requests with the same plan: its buffers, and hooks that fill them.

    Args:
        requests: most requests at once.
        tokens: most tokens of a request.

    Raises:
        UnknownHook, CaptureFailed: the plan does not fit the model.
    """

    def __init__(
        self, hooks: ModelHooks, plan: CapturePlan, *, requests: int, tokens: int, options: BufferOptions
    ) -> None:
        self.plan = plan
        self._hooks = hooks
        self._dtype = DTYPES.get(plan.dtype)
        self._columns = Columns(plan.shaping.columns)
        reads = hooks.reads(plan.hooks)
        self._locations = [location for location, _ in reads]
        shapes = [self._shape(location, point) for location, point in reads]
        summed = plan.shaping.summarises
        size = self._size(row_bytes(shapes, self._dtype, summed=summed), requests, tokens, options)
        self.buffers = RowBuffers(
            [point for _, point in reads],
            shapes,
            places=_places(requests),
            size=size,
            dtype=self._dtype,
            summed=summed,
            device=hooks.model.device,
        )
        self.users = 0
        self._all, self._tail = _Rows(), _Rows()
        self._fired = 0
        self._handles: list[Any] = []
        self._register()

    def _shape(self, location: str, point: Point) -> PointShape:
        info = self._hooks.structure.module_tensors[location]
        width = self._columns.width(info.width, point.hooks[0])
        return PointShape(width, getattr(torch, info.dtype), info.tail_only)

    def _size(self, one: int, requests: int, tokens: int, options: BufferOptions) -> int:
        """Rows of a place."""
        if self.plan.positions in ("last", "last_prompt") and self.plan.shaping.chooser is None:
            return 1
        fit = min(options.host_buffer_bytes // _places(requests), options.shard_bytes) // max(1, one)
        return max(1, min(tokens, fit))

    def _register(self) -> None:
        group_of = {
            point: (group, place) for group in self.buffers.groups for place, point in enumerate(group.points)
        }
        for point, location in enumerate(self._locations):
            group, place = group_of[point]
            at = place_of(location)
            module = self._hooks.model.hf.get_submodule(at.path)
            rows = self._tail if group.tail_only else self._all
            self._handles.append(at_module(module, at, self._copier(location, rows, group.rows[place])))

    def _copier(self, location: str, rows: _Rows, into: Tensor) -> Any:
        flat, columns, dtype = location in self._hooks.flat, self._columns, into.dtype

        def copy(value: Any) -> None:
            self._fired += 1
            if rows.target is None:
                return
            taken = tokens_first(value, rows.count, location, flat=flat)
            if rows.source is not None:
                taken = taken.index_select(0, rows.source)
            taken = columns.of(taken if taken.ndim == 2 else taken.flatten(1))
            into.index_copy_(0, rows.target, taken if taken.dtype == dtype else taken.to(dtype))

        return copy

    def open(self, request: GenerationRequest, generated: Sequence[int], *, wait: bool) -> RowRecord | None:
        """A place for one request's rows; None if none is free.

        Args:
            wait: wait for a moment until one is.
        """
        place = self.buffers.take() if wait or self.buffers.free else None
        if place is None:
            return None
        shaping = self.plan.shaping
        kept = Kept(request, self.plan.positions, request.chooser or shaping.chooser, generated)
        return RowRecord(self.buffers, place, request, kept, dtype=self._dtype, shaping=shaping)

    def take_prompt(self, record: RowRecord, start: int, stop: int, first: int, kept: int | None) -> None:
        """Plan the rows of prompt tokens `start` to `stop - 1`, which lie from `first` on in the pack.

        Args:
            kept: place of token `stop - 1` among the tokens that reach the head, if it is the prompt's last.
        """
        for token in record.kept.of_prompt(start, stop):
            self._all.add(first + token - start, record.place_of(token, tail=False))
            if kept is not None and token == stop - 1:
                self._tail.add(kept, record.place_of(token, tail=True))

    def take_generated(self, record: RowRecord, token: int, place: int, kept: int) -> None:
        """Plan the row of one generated token."""
        if record.kept.keeps_generated(token):
            self._all.add(place, record.place_of(token, tail=False))
            self._tail.add(kept, record.place_of(token, tail=True))

    def begin(self, tokens: int, kept: int) -> None:
        """Start the forward pass of a step with these numbers of rows, all and those of the head."""
        self._fired = 0
        device = self._hooks.model.device
        self._all.ready(tokens, device)
        self._tail.ready(kept, device)

    def end(self) -> None:
        """Check that every hook ran. Raises CaptureFailed."""
        if self._fired != len(self._locations):
            raise CaptureFailed(
                f"{self._fired} tensors were captured in a step, {len(self._locations)} expected: the model "
                "does not run its modules as it did when it was loaded"
            )

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _places(requests: int) -> int:
    """Places for the requests at once, and for rows on their way to the sink."""
    return requests + max(2, requests // 4)
