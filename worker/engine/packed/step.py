"""The pack whose forward pass runs now, for the attention that transformers calls without it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor


class Chunk(NamedTuple):
    """Consecutive tokens of one request."""

    first: int  # place of the first one in the pack
    stop: int
    begin: int  # place of the request's token 0 in the arena
    start: int  # token number of the first one


@dataclass(frozen=True, slots=True)
class Step:
    """A pack: single tokens first, then chunks."""

    keys: Sequence[Tensor]  # of each layer, [key heads, arena tokens, width]
    values: Sequence[Tensor]
    spans: Sequence[tuple[int, int]]  # of each single token: arena places of its request up to the token
    chunks: Sequence[Chunk]
    _places: dict[torch.device, Tensor] = field(default_factory=dict)

    def places(self, device: torch.device) -> Tensor:
        """Arena place of each token, int64 [tokens]."""
        if device not in self._places:
            single = [end - 1 for _, end in self.spans]
            places = [
                p for c in self.chunks for p in range(c.begin + c.start, c.begin + c.start + c.stop - c.first)
            ]
            self._places[device] = torch.tensor(single + places, device=device)
        return self._places[device]


_running: ContextVar[Step] = ContextVar("running step")


@contextmanager
def running(step: Step) -> Iterator[None]:
    """Make `step` the current one."""
    token = _running.set(step)
    try:
        yield
    finally:
        _running.reset(token)


def current() -> Step:
    """The step whose forward pass runs. Raises LookupError outside one."""
    return _running.get()
