"""The engine in the process of its host: the interface of `worker.engine.client` without a process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actograph.contract.errors import DeviceLost
from actograph.contract.models import ModelStructure
from worker.engine.capture.host_rows import DTYPE_NAMES, rows_of
from worker.engine.capture.selection import decoded
from worker.engine.client import EngineClient
from worker.engine.engine import Engine
from worker.engine.messages import (
    Control,
    Generation,
    Request,
    Results,
    Rows,
    RunOptions,
    RunStatistics,
    Sink,
    Source,
)
from worker.engine.model.device_errors import is_device_lost
from worker.text.tokenizer import Tokenizer


class LocalEngine:
    """A real engine, as a host uses it."""

    def __init__(self, engine: Engine, *, slots: int = 0) -> None:
        self.engine = engine
        self.slots = engine.forwards.slots(RunOptions(slots=slots))
        self.varies = engine.forwards.varies(RunOptions())

    @property
    def structure(self) -> ModelStructure:
        return self.engine.structure

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.model.tokenizer

    def run(
        self, *, source: Source, control: Control, results: Results, sink: Sink | None, options: RunOptions
    ) -> RunStatistics:
        try:
            return self.engine.run(
                source=source, control=control, results=_Results(results), sink=sink, options=options
            )
        except Exception as error:
            if is_device_lost(error):
                raise DeviceLost(f"{type(error).__name__}: {error}") from error
            raise

    def wake(self) -> None: ...

    def forget(self, sums: str) -> None:
        self.engine.forget(sums)

    def kill(self, reason: Exception) -> None: ...

    def memory(self) -> dict[str, int]:
        used = self.engine.used
        return {f"{what}_{when}_bytes": size for what, one in used.items() for when, size in one.items()}


class _Results:
    """Results of a run that a lost device ends."""

    def __init__(self, results: Results) -> None:
        self._results = results

    def started(self, key: str, generated_ids: Sequence[int]) -> None:
        self._results.started(key, generated_ids)

    def valued(self, key: str, token: int, values: Mapping[str, float]) -> None:
        self._results.valued(key, token, values)

    def done(self, generation: Generation) -> None:
        error = generation.error
        if is_device_lost(error):
            assert error is not None
            raise error
        self._results.done(generation)


def local(engine: Any, *, slots: int = 0) -> Any:
    """`engine` as a host uses it, if it is not such a one already."""
    return LocalEngine(engine, slots=slots) if isinstance(engine, Engine) else engine


def rows(tensor: Tensor, first_row: int = 0, *, tokens: tuple[int, ...] | None = None) -> Rows:
    """A tensor's rows as data."""
    return rows_of((tensor,), first_row, tokens)


def tensor_of(rows: Rows) -> Tensor:
    """Rows as a tensor, in new memory."""
    if rows.dtype == "F8_E4M3":
        return decoded(torch.from_numpy(np.concatenate(rows.pieces)))
    dtype = next(dtype for dtype, name in DTYPE_NAMES.items() if name == rows.dtype)
    whole = np.concatenate(rows.pieces)
    if not len(whole):
        return torch.empty(0, rows.width, dtype=dtype)
    return torch.from_numpy(whole).view(dtype)


class ListedRun:
    """Source, control, results and sink of a run of these requests.

    Args:
        write: takes the rows; without it they are dropped.

    Attributes:
        made: generations by key.
        live: generated ids by key, which grow.
    """

    def __init__(
        self, requests: Sequence[Request], write: Callable[[str, Mapping[str, Rows]], None] | None = None
    ) -> None:
        self.waiting, self._write = list(requests), write
        self.made: dict[str, Generation] = {}
        self.live: dict[str, Sequence[int]] = {}
        self.values: dict[str, list[tuple[int, dict[str, float]]]] = {}

    def through(self, engine: EngineClient, options: RunOptions) -> list[Generation]:
        """Run the requests; results in their order."""
        keys = [request.key for request in self.waiting]
        engine.run(source=self, control=self, results=self, sink=self, options=options)
        return [self.made[key] for key in keys]

    @property
    def exhausted(self) -> bool:
        return not self.waiting

    def pull(self, room: int, *, urgent: int, wait: float) -> list[Request]:
        taken, self.waiting = self.waiting[:room], self.waiting[room:]
        return taken

    def stopped(self) -> bool:
        return False

    def dropped(self, key: str) -> bool:
        return False

    def beat(self) -> None: ...

    def started(self, key: str, generated_ids: Sequence[int]) -> None:
        self.live[key] = generated_ids

    def valued(self, key: str, token: int, values: Mapping[str, float]) -> None:
        self.values.setdefault(key, []).append((token, dict(values)))

    def done(self, generation: Generation) -> None:
        self.made[generation.key] = generation

    def write(self, key: str, rows: Mapping[str, Rows]) -> None:
        if self._write is not None:
            self._write(key, rows)
