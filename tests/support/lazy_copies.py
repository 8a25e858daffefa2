"""A GPU's blocks on a CPU: rows leave by copies that are made as late as a GPU may make them.

A copy runs when somebody waits for its event, or when the place that it reads is used again after a wait of
the device. So a place that is used again without that wait gives wrong rows.
"""

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from worker.engine.capture import pinned, pool
from worker.engine.capture.pinned import Copies, Transfer, checked_numbers
from worker.engine.model import host_memory


class _Event:
    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self._lock = threading.Lock()

    def synchronize(self) -> None:
        with self._lock, torch.inference_mode():
            work, self._work = self._work, None
            if work is not None:
                work()


class LazyCopies(Copies):
    """Copies that wait until they are needed.

    Attributes:
        made: number of blocks copied so far, over all runs.
    """

    made = 0

    def begin(self, transfers: Sequence[Transfer]) -> _Event:
        def copy() -> None:
            for slabs, filled, target in transfers:
                LazyCopies.made += 1
                for slab, rows, extremes in zip(slabs, target.rows, target.extremes, strict=True):
                    rows.copy_(slab)
                    if (numbers := checked_numbers(slab[:, :filled])) is not None:
                        extremes.copy_(torch.stack(torch.aminmax(numbers)).float())

        return _Event(copy)

    def fetch(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def mark(self) -> _Event:
        return _Event(lambda: None)

    def settle(self) -> None:
        """Memory of a CPU stays while a copy refers to it."""


def as_on_a_gpu(patch: pytest.MonkeyPatch) -> None:
    """Let pools on a CPU do what they do on a GPU."""
    real: Any = pool.Pool.__init__

    def init(self: pool.Pool, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        self.on_gpu, self.copies = True, LazyCopies(self.device)

    def empty(*shape: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        return torch.zeros(*shape, **options).fill_(77) if pin_memory else torch.empty(*shape, **options)

    stream = SimpleNamespace(wait_event=lambda event: event.synchronize())
    patch.setattr(pool.Pool, "__init__", init)
    patch.setattr(pool, "torch", _Torch(current_stream=lambda _: stream))
    patch.setattr(pinned, "torch", _Torch(empty=empty, zeros=empty))
    patch.setattr(host_memory, "torch", _Torch(empty=empty))


class _Torch:
    """torch with other functions."""

    def __init__(self, **changes: Any) -> None:
        self.cuda = SimpleNamespace(current_stream=changes.pop("current_stream", None))
        vars(self).update(changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)
