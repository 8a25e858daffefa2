"""One run of the streaming engine that many samples share.

Each sample runs in a thread of its own and waits here for its generation; all of them decode together.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from worker.engine.requests import Generation, GenerationRequest, RowChunk, RowSink
from worker.engine.runs import RunPlan, RunRequest

#: the engine looks for its end this often while nothing runs
_MOMENT_SECONDS = 0.05


class RunLeases(Protocol):
    """Leases of the samples of a run."""

    def progress(self, _step: int = 0) -> None:
        """Note a decode step."""

    def should_stop(self) -> bool:
        """Whether the run ends now."""
        ...

    def has_ended(self, job_id: str) -> bool:
        """Whether this job was cancelled or has ended otherwise."""
        ...


@dataclass(eq=False)
class _Call:
    """A request of a sample, and its generation when it has one."""

    request: GenerationRequest
    plan: RunPlan
    job_id: str
    sink: RowSink | None
    on_start: Callable[[Sequence[int]], None] | None
    generation: Generation | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def end(self, generation: Generation) -> None:
        self.generation = generation
        self.done.set()


class SharedRun:
    """Passes requests of samples to the engine, and rows and generations back.

    It is the engine's source, sink, control and receiver of results.
    """

    def __init__(self, leases: RunLeases) -> None:
        self._leases = leases
        self._changed = threading.Condition()
        self._ready: deque[_Call] = deque()
        self._running: dict[str, _Call] = {}
        #: free places that the engine asked to fill
        self._room = 0
        #: samples that have begun, and those of them without a request so far
        self._active = 0
        self._preparing: set[str] = set()
        self._is_closing = False
        self._has_ended = False

    # the threads of samples

    def generate(
        self,
        request: GenerationRequest,
        plan: RunPlan,
        *,
        job_id: str,
        sink: RowSink | None = None,
        on_start: Callable[[Sequence[int]], None] | None = None,
    ) -> Generation:
        """Continue one request beside those of the other samples; waits until it has ended.

        Args:
            sink: takes its rows, under index 0.
            on_start: takes a live view of its generated ids whenever it begins.
        """
        call = _Call(request, plan, job_id, sink, on_start)
        with self._changed:
            self._preparing.discard(request.key)
            if self._has_ended:
                return _without_tokens(request)
            self._ready.append(call)
            self._changed.notify_all()
        call.done.wait()
        assert call.generation is not None
        return call.generation

    # the thread that brings samples

    def wait_for_room(self, seconds: float) -> int:
        """Number of further samples that the engine can take; waits so long for at least one."""
        with self._changed:
            self._changed.wait_for(lambda: self._free > 0 or self._has_ended, seconds)
            return max(0, self._free)

    @property
    def _free(self) -> int:
        return self._room - len(self._ready) - len(self._preparing)

    @property
    def active(self) -> int:
        """Number of samples that have begun and not ended."""
        return self._active

    @property
    def has_ended(self) -> bool:
        """Whether the engine takes no further request."""
        return self._has_ended

    def begin(self, key: str) -> None:
        """Note a sample that begins; its first request has this key."""
        with self._changed:
            self._active += 1
            self._preparing.add(key)

    def ended(self, key: str) -> None:
        """Note that a sample has ended."""
        with self._changed:
            self._active -= 1
            self._preparing.discard(key)
            self._changed.notify_all()

    def wait_for_end_of_one(self, seconds: float) -> None:
        """Wait until a sample ends, for so long at most."""
        with self._changed:
            before = self._active
            self._changed.wait_for(lambda: self._active < before or self._has_ended, seconds)

    def close(self) -> None:
        """Bring no further sample; the run ends with the last one."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def end(self, error: BaseException | None = None) -> None:
        """End every request that the engine has not ended: as cancelled, or with its error."""
        with self._changed:
            self._has_ended = self._is_closing = True
            left = [*self._ready, *self._running.values()]
            self._ready.clear()
            self._running.clear()
            self._changed.notify_all()
        for call in left:
            call.end(_without_tokens(call.request, error))

    # the engine: source

    @property
    def exhausted(self) -> bool:
        with self._changed:
            return self._is_closing and not self._active

    def pull(self, room: int, *, idle: bool) -> Sequence[RunRequest]:
        with self._changed:
            self._room = room
            if idle:
                self._changed.notify_all()
                self._changed.wait_for(self._is_complete, _MOMENT_SECONDS)
            taken = [self._ready.popleft() for _ in range(min(room, len(self._ready)))]
            self._room -= len(taken)
            self._running |= {call.request.key: call for call in taken}
            if self._free > 0:
                self._changed.notify_all()
        return [RunRequest(call.request, call.plan) for call in taken]

    def _is_complete(self) -> bool:
        """Whether every sample that was brought so far has its request here, or none will come."""
        return bool(self._ready and not self._preparing) or (self._is_closing and not self._active)

    # the engine: sink and results

    def write(self, key: str, rows: Mapping[str, RowChunk]) -> None:
        sink = self._running[key].sink
        assert sink is not None
        sink.write(0, rows)

    def reset(self, key: str) -> None:
        sink = self._running[key].sink
        if sink is not None:
            sink.reset(0)

    def done(self, request: GenerationRequest, generation: Generation) -> None:
        with self._changed:
            call = self._running.pop(request.key)
        call.end(generation)

    # the engine: control

    def should_stop(self) -> bool:
        return self._leases.should_stop()

    def should_drop(self, key: str) -> bool:
        return self._leases.has_ended(self._running[key].job_id)

    def started(self, request: GenerationRequest, generated_ids: Sequence[int]) -> None:
        on_start = self._running[request.key].on_start
        if on_start is not None:
            on_start(generated_ids)

    def progressed(self, steps: int) -> None:
        self._leases.progress(steps)


def _without_tokens(request: GenerationRequest, error: BaseException | None = None) -> Generation:
    return Generation(
        key=request.key,
        prompt_ids=request.prompt_ids,
        generated_ids=(),
        finish_reason="cancelled" if error is None else "error",
        error=error,
    )
