"""One packed forward pass: the newest token of every running row, then chunks of prompts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Chunk(NamedTuple):
    """Consecutive prompt tokens of one slot."""

    slot: int
    start: int  # number of its first token in the slot
    first: int  # place of its first token in the pack
    stop: int  # place after its last one


class SharedPrefix(NamedTuple):
    """First tokens that the slots of some decode rows have in common."""

    rows: Sequence[int]  # places in the pack
    row_index: Tensor  # `rows` on the device, int64
    slot: int  # one of theirs: keys and values of the prefix are read here
    tokens: int


@dataclass(frozen=True, slots=True)
class Step:
    """Places of slots in a pack `[1, tokens]`; decode rows come first, one token each."""

    keys: Sequence[Tensor]  # of each layer, [slots, heads, capacity, width]
    values: Sequence[Tensor]
    slots: Sequence[int]  # of each decode row
    lengths: Sequence[int]  # of each decode row, the new token included
    chunks: Sequence[Chunk]
    slot_index: Tensor  # `slots` on the device, int64
    prefixes: Sequence[SharedPrefix]  # each row is in one of them at most
    position_index: Tensor  # `lengths` less one on the device, int64

    @property
    def tokens(self) -> int:
        """Length of the pack."""
        return self.chunks[-1].stop if self.chunks else len(self.slots)


_running: ContextVar[Step] = ContextVar("running step")


@contextmanager
def running(step: Step) -> Iterator[None]:
    """Make `step` the current one of this thread."""
    token = _running.set(step)
    try:
        yield
    finally:
        _running.reset(token)


def current() -> Step:
    """The step whose forward pass runs. Raises LookupError outside one."""
    return _running.get()
