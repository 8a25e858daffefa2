"""The batches of one call to the engine, and smaller ones when memory runs out.

A failed batch first frees its memory. Then half of it runs. A single sample runs once more with small
buffers. If it fails again, its error has the numbers.
"""

import gc
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from actograph.contract.row_selection import NamedPositions
from worker.engine.edits.interventions import Editor
from worker.engine.locations import ModelHooks, Point
from worker.engine.model import memory
from worker.engine.model.device_errors import is_out_of_memory, out_of_memory
from worker.engine.model.memory import LearnedLimit
from worker.engine.requests import (
    BufferOptions,
    Edit,
    Generation,
    GenerationRequest,
    RowShaping,
    RowSink,
)
from worker.engine.rows.rows import RowStream

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """Rows to capture in every batch of a call, and their sink."""

    reads: Sequence[tuple[str, Point]]  # (location, point) in execution order
    positions: NamedPositions
    dtype: torch.dtype | None
    shaping: RowShaping
    sink: RowSink
    options: BufferOptions

    @property
    def locations(self) -> list[str]:
        return [location for location, _ in self.reads]

    @property
    def copied(self) -> list[int]:
        """Points whose tensors are copied when they are read, because the model overwrites them."""
        return [i for i, (_, point) in enumerate(self.reads) if point.changed_later]

    @property
    def sparing(self) -> Self:
        """The same capture with the smallest buffers; equal to this one if they cannot be smaller."""
        return replace(self, options=sparing(self.options))

    def stream(
        self,
        batch: Sequence[int],
        requests: Sequence[GenerationRequest],
        *,
        generated_ids: Sequence[Sequence[int]],
        ended_at: Sequence[int | None],
        should_stop: Callable[[], bool],
    ) -> RowStream:
        """Open the row path of one batch.

        Args:
            batch: indices of the requests, as the sink knows them.
            generated_ids, ended_at: live views, see `RowStream`.
        """
        lengths = [len(request.prompt_ids) for request in requests]
        choosers = [request.chooser for request in requests]
        earlier = [request.earlier for request in requests]
        return RowStream(
            [point for _, point in self.reads],
            prompt_lengths=lengths,
            padded_length=max(lengths),
            indices=batch,
            positions=self.positions,
            dtype=self.dtype,
            shaping=self.shaping,
            prompt_ids=[request.prompt_ids for request in requests],
            generated_ids=generated_ids,
            choosers=choosers if any(choosers) else (),
            earlier=earlier if any(earlier) else (),
            options=self.options,
            sink=self.sink,
            ended_at=ended_at,
            should_stop=should_stop,
        )


@dataclass(frozen=True, kw_only=True)
class BatchJob(ABC):
    """One call to the engine: the data common to its batches."""

    hooks: ModelHooks
    requests: Sequence[GenerationRequest]
    limit: LearnedLimit  # learns which batches fit
    should_stop: Callable[[], bool]
    capture: Capture | None = None

    @abstractmethod
    def run_batch(self, batch: Sequence[int]) -> dict[int, Generation]:
        """Run the requests with these indices as one batch, until the sink has all rows."""

    @abstractmethod
    def need(self, batch: Sequence[int]) -> int:
        """Size of a batch in the unit of `limit`."""

    @abstractmethod
    def describe(self, index: int) -> str:
        """Name a request in the error of a sample that does not fit even alone."""

    def run(self, batches: Sequence[Sequence[int]]) -> list[Generation]:
        """One `Generation` for each request, in their order.

        Args:
            batches: indices of requests that may run together.
        """
        done: dict[int, Generation] = {}
        devices = self.hooks.model.devices
        capture = self.capture
        spare_job = self if capture is None else replace(self, capture=capture.sparing)

        def attempt(batch: Sequence[int], spare: bool) -> None:
            memory.reset_peak(devices)
            try:
                done.update((spare_job if spare else self).run_batch(batch))
            except Exception as error:
                if is_out_of_memory(error):
                    self.limit.failed(self.need(batch), len(batch))
                raise
            if all(done[i].finish_reason != "cancelled" for i in batch):
                self.limit.passed(self.need(batch))

        def reset(batch: Sequence[int]) -> None:
            if capture is not None:
                for index in batch:
                    capture.sink.reset(index)

        def give_up(index: int, seen: Mapping[str, int]) -> None:
            done[index] = self.ended(index, error=out_of_memory(devices, self.describe(index), seen))

        descend(
            batches,
            attempt=attempt,
            reset=reset,
            observe=lambda: memory.memory_snapshot(devices),
            give_up=give_up,
            can_spare=spare_job.capture != capture,
        )
        return [done[i] for i in range(len(self.requests))]

    def ended(self, index: int, *, error: BaseException | None = None, cancelled: bool = False) -> Generation:
        """A generation without tokens."""
        request = self.requests[index]
        return Generation(
            key=request.key,
            prompt_ids=request.prompt_ids,
            generated_ids=(),
            finish_reason="cancelled" if cancelled else "stop" if error is None else "error",
            error=error,
        )

    def editor(
        self,
        requests: Sequence[GenerationRequest],
        *,
        generated_ids: Sequence[Sequence[int]] | None = None,
        belongs: Callable[[Edit], bool] = lambda edit: True,
    ) -> Editor | None:
        """Editor of one batch; None if the requests change nothing.

        Args:
            generated_ids: live view of each row's generated ids; None if nothing is generated.
            belongs: selects the edits to make.
        """
        edits = [
            [edit for edit in request.edits if not edit.changes_nothing and belongs(edit)]
            for request in requests
        ]
        if not any(edits):
            return None
        return Editor(
            self.hooks.model.lm,
            edits,
            location_of={edit.hook: self.hooks.edited_at(edit.hook) for own in edits for edit in own},
            flat=self.hooks.flat,
            prompt_ids=[request.prompt_ids for request in requests],
            generated_ids=[()] * len(requests) if generated_ids is None else generated_ids,
            head=None if generated_ids is None else self.hooks.head,
        )


@dataclass(frozen=True, kw_only=True)
class ReadingJob(BatchJob):
    """A call that only reads texts; batches are compared in padded tokens."""

    def describe(self, index: int) -> str:
        return f"a text of {len(self.requests[index].prompt_ids)} tokens"

    def need(self, batch: Sequence[int]) -> int:
        return len(batch) * max(len(self.requests[i].prompt_ids) for i in batch)


def sparing(options: BufferOptions) -> BufferOptions:
    """The smallest buffers.

    Every step leaves the device at once, a prompt's rows leave before the next layer runs, and the host holds
    at most one shard of a sample.
    """
    return replace(
        options,
        host_buffer_bytes=min(options.host_buffer_bytes, options.shard_bytes),
        device_buffer_bytes=0,
        max_block_steps=1,
        queue_blocks=1,
        wait_for_copies=True,
    )


def descend(
    batches: Sequence[Sequence[int]],
    *,
    attempt: Callable[[Sequence[int], bool], None],
    reset: Callable[[Sequence[int]], None],
    observe: Callable[[], Mapping[str, int]],
    give_up: Callable[[int, Mapping[str, int]], None],
    can_spare: bool,
) -> None:
    """Run `attempt` on each batch of indices; if memory runs out, on its halves, and so on.

    Args:
        attempt: runs one batch, with small buffers if its second argument is True; raises the
            allocator's error.
        reset: discards the results of a failed attempt, before its indices are run again.
        observe: memory in use; called while a failed attempt still holds its memory.
        give_up: takes an index that does not fit even alone, and the memory observed then.
        can_spare: whether smaller buffers are possible.
    """
    waiting = [(list(batch), False) for batch in reversed(batches)]
    while waiting:
        batch, spare = waiting.pop()
        seen = _failure(attempt, batch, spare, observe)
        if seen is None:
            continue
        release()
        reset(batch)
        numbers = ", ".join(f"{name} {value:,}" for name, value in seen.items())
        if len(batch) > 1:
            half = (len(batch) + 1) // 2
            log.warning("out of memory with a batch of %d (%s); retrying with %d", len(batch), numbers, half)
            waiting += [(batch[half:], False), (batch[:half], False)]
        elif can_spare and not spare:
            log.warning("out of memory with one sample (%s); retrying with small buffers", numbers)
            waiting.append((batch, True))
        else:
            log.warning("out of memory with one sample (%s); the sample fails", numbers)
            give_up(batch[0], seen)


def _failure(
    attempt: Callable[[Sequence[int], bool], None],
    batch: Sequence[int],
    spare: bool,
    observe: Callable[[], Mapping[str, int]],
) -> Mapping[str, int] | None:
    """Memory observed when it ran out; None if it sufficed.

    The error is dropped here: its frames hold the tensors.
    """
    try:
        attempt(batch, spare)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return observe()
    return None


def release() -> None:
    """Give freed tensors back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
