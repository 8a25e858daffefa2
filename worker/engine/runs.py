"""A run of the engine: requests are pulled while there is room; rows and results leave as they are ready.

Nothing here knows a queue or a file. An exception of a callback that is given one request fails that request
alone, except for `Results.done`: nobody would learn how the rest ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from actograph.contract.row_selection import Positions
from actograph.contract.specs import Dtype, SamplingSpec
from worker.engine.requests import GenerationRequest, RowChunk, RowShaping

#: dtypes of stored rows by name; absent: as the model computes them
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturePlan:
    """Rows to capture of one request.

    Attributes:
        hooks: canonical names or module locations, as `actograph.contract.hooks.expand` returns them.
        positions: tokens to keep; names of segments count as all generated tokens. A chooser of the request
            or of the shaping decides instead.
        held_rows: number of rows that the sink holds in memory until the end of the sample decides on them.
    """

    hooks: tuple[str, ...]
    positions: Positions = "all"
    dtype: Dtype = "model"
    held_rows: int = 0
    shaping: RowShaping = field(default_factory=RowShaping)

    @property
    def copies(self) -> tuple[object, ...]:
        """Key of plans whose requests share the copies of a pass."""
        columns = self.shaping.columns
        chosen = ("first", columns.stop) if isinstance(columns, slice) else columns
        return (self.hooks, self.dtype, chosen, self.shaping.summarises)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunRequest:
    """One prompt to continue, or to read if its `max_tokens` is 0, with all that is asked of it.

    Attributes:
        request: its key is unique in the run.
        sampling: its seed is not used, since `request` has one.
        time_limit: seconds from its start to its end as "timeout".
        priority: it takes part in the next pass, before other prompts: a chat.
    """

    request: GenerationRequest
    sampling: SamplingSpec = field(default_factory=SamplingSpec)
    capture: CapturePlan | None = None
    time_limit: float | None = None
    priority: bool = False

    @property
    def key(self) -> str:
        return self.request.key

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.request.prompt_ids

    @property
    def max_tokens(self) -> int:
        """Most tokens to generate; 0: the prompt is only read."""
        own = self.request.max_tokens
        return self.sampling.max_tokens if own is None else own

    @property
    def most(self) -> int:
        """Most tokens that the model runs; the last generated token is never run."""
        return len(self.prompt) + max(self.max_tokens - 1, 0)


class Source(Protocol):
    """Requests that wait. Called from the engine's thread."""

    @property
    def exhausted(self) -> bool:
        """True if `pull` will never return a request again."""
        ...

    def pull(self, room: int, *, urgent: int, wait: float) -> Sequence[RunRequest]:
        """Take up to `room` requests, and up to `urgent` priority requests besides.

        Args:
            wait: seconds that it may block until it has a request; 0 while something is running.
        """
        ...


class Sink(Protocol):
    """Takes captured rows, from the delivery thread."""

    def write(self, key: str, rows: Mapping[str, RowChunk]) -> None:
        """Take one chunk of a request.

        Per hook the chunks arrive in row order and without gaps. Hooks that name the same tensor share its
        memory, which is the engine's again when this returns. An exception fails this request only, and
        nothing more of it is written. The rows of a request that fails later are void.
        """
        ...
