"""One list of requests through `Engine.run`: what tests and benches ask of an engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from actograph.contract.row_selection import Positions
from actograph.contract.specs import Dtype, SamplingSpec
from worker.engine.engine import Engine
from worker.engine.requests import Generation, GenerationRequest, RowChunk, RowShaping
from worker.engine.runs import CapturePlan, RunOptions, RunRequest

_SAMPLING = SamplingSpec()
_AS_COMPUTED = RowShaping()
_OPTIONS = RunOptions()


class IndexedSink(Protocol):
    """Takes rows by the index of their request."""

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None: ...


def _never(*_: Any) -> bool:
    return False


@dataclass
class _Run:
    """Source, control, results and sink of a run, whose keys are indices."""

    waiting: list[RunRequest]
    sink: IndexedSink | None
    stop: Callable[[], bool]
    drop: Callable[[int, int], bool]
    made: dict[str, Generation] = field(default_factory=dict)
    live: dict[str, Sequence[int]] = field(default_factory=dict)

    @property
    def exhausted(self) -> bool:
        return not self.waiting

    def pull(self, room: int, *, urgent: int, wait: float) -> list[RunRequest]:
        taken, self.waiting = self.waiting[:room], self.waiting[room:]
        return taken

    def stopped(self) -> bool:
        return self.stop()

    def dropped(self, key: str) -> bool:
        return self.drop(int(key), len(self.live.get(key, ())))

    def beat(self) -> None: ...

    def started(self, key: str, generated_ids: Sequence[int]) -> None:
        self.live[key] = generated_ids

    def done(self, generation: Generation) -> None:
        self.made[generation.key] = generation

    def write(self, key: str, rows: Mapping[str, RowChunk]) -> None:
        assert self.sink is not None
        self.sink.write(int(key), rows)


def generate(
    engine: Engine,
    requests: Sequence[GenerationRequest],
    *,
    sampling: SamplingSpec = _SAMPLING,
    hooks: Sequence[str] = (),
    positions: Positions = "all",
    dtype: Dtype = "model",
    shaping: RowShaping = _AS_COMPUTED,
    sink: IndexedSink | None = None,
    options: RunOptions = _OPTIONS,
    stop: Callable[[], bool] = _never,
    drop: Callable[[int, int], bool] = _never,
) -> list[Generation]:
    """Continue all requests in one run; results in their order, under their own keys.

    Args:
        stop: asked between passes; True cancels the run.
        drop: index of a live request and its generated tokens -> whether it ends alone.
    """
    plan = CapturePlan(hooks=tuple(hooks), positions=positions, dtype=dtype, shaping=shaping)
    asked = [
        RunRequest(
            request=replace(request, key=str(i)), sampling=sampling, capture=plan if plan.hooks else None
        )
        for i, request in enumerate(requests)
    ]
    run = _Run(asked, sink, stop, drop)
    engine.run(source=run, control=run, results=run, sink=run if sink is not None else None, options=options)
    for left in run.waiting:  # the run was stopped before it pulled them
        run.done(
            Generation(key=left.key, prompt_ids=left.prompt, generated_ids=(), finish_reason="cancelled")
        )
    return [replace(run.made[str(i)], key=request.key) for i, request in enumerate(requests)]


def read_texts(engine: Engine, requests: Sequence[GenerationRequest], **options: Any) -> list[Generation]:
    """Read all requests in one run, and generate nothing; options as in `generate`."""
    return generate(engine, [replace(request, max_tokens=0) for request in requests], **options)
