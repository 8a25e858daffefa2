"""A run of an engine: requests are pulled while there is room, and results leave as they are ready."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from actograph.contract.specs import Dtype, SamplingSpec
from worker.engine.requests import Generation, GenerationRequest, Positions, RowChunk, RowShaping


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturePlan:
    """Rows to capture."""

    hooks: tuple[str, ...]  # canonical names or module locations
    positions: Positions = "all"
    dtype: Dtype = "model"
    shaping: RowShaping = field(default_factory=RowShaping)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """How requests are continued and what is captured of them.

    `sampling.seed` is not used: each request has its own.
    """

    sampling: SamplingSpec
    capture: CapturePlan | None = None
    time_limit: float | None = None  # seconds from a request's start to its end as "timeout"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One request of a run, with its own plan or the run's."""

    request: GenerationRequest  # its key is unique in the run
    plan: RunPlan | None = None


@dataclass(slots=True)
class RunStatistics:
    """Counts of one run."""

    steps: int = 0
    computed_tokens: int = 0  # that the model ran
    shared_tokens: int = 0  # of prompts, copied from another request and not run
    merged_reads: int = 0  # tokens that attention did not read again, since other rows share them
    generated_tokens: int = 0
    rows: int = 0  # written, over all hooks


class RequestSource(Protocol):
    """Requests that wait for a place. Called from the thread that runs the engine."""

    @property
    def exhausted(self) -> bool:
        """True if `pull` will never return a request again."""
        ...

    def pull(self, room: int, *, idle: bool) -> Sequence[RunRequest]:
        """Take up to `room` requests; none if none is ready.

        Args:
            idle: nothing is running. The source may then block for a moment until it has a request;
                otherwise it must return at once.
        """
        ...


class RunSink(Protocol):
    """Takes captured rows. Called from a thread of the engine."""

    def write(self, key: str, rows: Mapping[str, RowChunk]) -> None:
        """Take one chunk of a request.

        Per hook the chunks arrive in row order and without gaps; each chunk holds every hook that has rows.
        The tensors are valid until `write` returns. Hooks that name the same tensor share its memory. An
        exception fails this request only, and nothing more of it is written.
        """
        ...

    def reset(self, key: str) -> None:
        """Discard every chunk of a request: it will be run again from its start."""
        ...


class RunControl(Protocol):
    """Steers a run and follows it. Called between steps from the thread that runs the engine."""

    def should_stop(self) -> bool:
        """True cancels every request that has not ended."""
        ...

    def should_drop(self, key: str) -> bool:
        """True ends this request as "dropped"."""
        ...

    def started(self, request: GenerationRequest, generated_ids: Sequence[int]) -> None:
        """A request got its place; `generated_ids` is a live view of its tokens."""
        ...

    def progressed(self, steps: int) -> None:
        """A step ended (a progress heartbeat)."""
        ...


class RunResults(Protocol):
    """Takes generations. Called from a thread of the engine, once for each request that was pulled."""

    def done(self, request: GenerationRequest, generation: Generation) -> None:
        """Take a generation; all its rows are in the sink. An exception ends the run."""
        ...
