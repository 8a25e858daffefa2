"""The pack whose forward pass runs now, for the attention that transformers calls without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from worker.engine.model.host_memory import to_device


class Chunk(NamedTuple):
    """Consecutive tokens of one request."""

    first: int  # place of the first one in the pack
    stop: int
    begin: int  # place of the request's token 0 in the arena
    start: int  # token number of the first one


class Lengths(NamedTuple):
    """Sequences of a pack as torch's attention over variable lengths takes them; int32."""

    queries: Tensor  # [requests + 1]: the first token of each in the pack, and the end
    begins: Tensor  # [requests + 1]: the arena place of each one's token 0; the last number is not read
    used: Tensor  # [requests]: tokens of each, the new ones included
    most_queries: int
    most_used: int


class Branches:
    """Several continuations of one request's first tokens, which share these and nothing else.

    The pack has the tokens of each branch up to the end of the prompt, one branch after the other.

    Args:
        begin: place of the request's token 0 in the arena.
        firsts: number of the first token of each branch.
        tokens: of the prompt.
    """

    def __init__(self, begin: int, firsts: Sequence[int], tokens: int) -> None:
        self.begin, self.shared = begin, max(firsts)
        self.counts = [tokens - first for first in firsts]
        self._firsts, self._tokens = np.array(firsts), tokens
        self._known: dict[tuple[torch.device, int | None], BranchPlaces] = {}

    def places(self, device: torch.device, window: int | None) -> BranchPlaces:
        """Places of tokens and keys, and which keys a token does not see."""
        key = device, window
        if key not in self._known:
            longest, counts = max(self.counts), np.array(self.counts)
            starts = np.cumsum(counts) - counts
            within = np.arange(longest)
            padded = starts[:, None] + np.minimum(within, counts[:, None] - 1)
            branch = np.repeat(np.arange(len(counts)), counts)
            at = np.arange(counts.sum()) - starts[branch]
            number = self._firsts[branch] + at
            shared = np.arange(self.shared)
            hidden = np.concatenate([shared >= self._firsts[branch][:, None], within > at[:, None]], axis=1)
            if window is not None:
                keys = np.concatenate(
                    [np.broadcast_to(shared, (len(branch), self.shared)),
                     self._firsts[branch][:, None] + within], axis=1
                )  # fmt: skip
                hidden |= keys <= (number - window)[:, None]
            arrays = padded.ravel(), branch * longest + at, hidden
            self._known[key] = BranchPlaces(*(to_device(one, device) for one in arrays))
        return self._known[key]


class BranchPlaces(NamedTuple):
    """Tokens of branches in a rectangle [branches, longest]; a short branch repeats its last token."""

    padded: Tensor  # [branches * longest]: place in the pack
    rows: Tensor  # [tokens]: place of each token of the pack in the rectangle
    hidden: Tensor  # bool [tokens, shared + longest]: keys that it does not see, the branch's own ones last


@dataclass(frozen=True, slots=True)
class Step:
    """A pack: single tokens first, then chunks; or branches of one request."""

    keys: Sequence[Tensor]  # of each layer, [key heads, arena tokens, width]
    values: Sequence[Tensor]
    spans: Sequence[tuple[int, int]]  # of each single token: arena places of its request up to the token
    chunks: Sequence[Chunk]
    fused: bool = False  # one call attends for all requests, see `attention.together`
    windows: set[int] = field(default_factory=set)  # of the masks that attention was given; 0: none
    ways: set[str] = field(default_factory=set)  # in which layers attended
    known_places: dict[torch.device, Tensor] = field(default_factory=dict)
    known_lengths: dict[torch.device, Lengths] = field(default_factory=dict)
    known_masks: dict[Any, Any] = field(default_factory=dict)  # see `flex.masks_of`
    branches: Branches | None = None  # whose keys and values are not kept

    def places(self, device: torch.device) -> Tensor:
        """Arena place of each token, int64 [tokens]."""
        if device not in self.known_places:
            single = [end - 1 for _, end in self.spans]
            places = [
                p for c in self.chunks for p in range(c.begin + c.start, c.begin + c.start + c.stop - c.first)
            ]
            self.known_places[device] = to_device(np.array(single + places, np.int64), device)
        return self.known_places[device]

    def lengths(self, device: torch.device) -> Lengths:
        """Places of each request's tokens in the pack and in the arena."""
        if device not in self.known_lengths:
            singles = [(begin, end - begin, 1) for begin, end in self.spans]
            chunks = [(c.begin, c.start + c.stop - c.first, c.stop - c.first) for c in self.chunks]
            begins, used, counts = zip(*singles, *chunks, strict=True)
            numbers = [(0, *accumulate(counts)), (*begins, 0), (*used, 0)]
            queries, starts, lengths = to_device(np.array(numbers, np.int32), device)
            self.known_lengths[device] = Lengths(queries, starts, lengths[:-1], max(counts), max(used))
        return self.known_lengths[device]


#: layer and side of its attention -> what is done with its tensor [1, tokens, heads, width]
AttentionHooks = Mapping[tuple[int, str], Callable[[Tensor], None]]

_running: ContextVar[Step] = ContextVar("running step")
_hooks: ContextVar[AttentionHooks] = ContextVar("hooks of the running step")


@contextmanager
def running(step: Step, hooks: AttentionHooks) -> Iterator[None]:
    """Make `step` the current one; its queries, keys and values go through `hooks`."""
    token, hooks_token = _running.set(step), _hooks.set(hooks)
    try:
        yield
    finally:
        _running.reset(token)
        _hooks.reset(hooks_token)


def show(layer: int, side: str, tensor: Tensor) -> None:
    """Let hooks read and change a tensor of the current pass, [1, heads, tokens, width]."""
    at = _hooks.get().get((layer, side))
    if at is not None:
        at(tensor.transpose(1, 2))


def current() -> Step:
    """The step whose forward pass runs. Raises LookupError outside one."""
    return _running.get()
