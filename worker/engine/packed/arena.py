"""Keys and values of all requests: one arena of tokens per layer, one contiguous range per request."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from worker.engine.attention_masks import UnknownAttention
from worker.engine.packed import step
from worker.engine.packed.other_ranks import OtherRanks


class LayerShape(NamedTuple):
    """Keys and values of one token in one layer."""

    heads: int
    key_width: int
    value_width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        return self.heads * (self.key_width + self.value_width) * self.dtype.itemsize


@dataclass(slots=True, eq=False)
class Range:
    """Consecutive places of one request. `start` changes if the arena is compacted."""

    start: int
    size: int
    filled: int = 0  # tokens that are computed


class Arena(Cache):
    """Keys and values per layer, [key heads, tokens + 1, width].

    transformers' attention modules call `update` with the keys and values of a pack.

    Args:
        block: places at which ranges begin. With more than one, attention multiplies the hidden values of a
            block by zero; so nobody shares a block, and a range that is taken or moved holds zeros at first:
            zero times what is not a number is not a number.

    Attributes:
        tokens: places of requests; one more, the last, belongs to none.
        moved: tokens moved to close gaps.
        others: ranks whose arenas hold the same tokens' keys and values of other heads.
    """

    others: OtherRanks | None = None

    def __init__(self, shapes: Sequence[LayerShape], tokens: int, block: int = 1) -> None:
        self.layers: list[Any] = []  # read by transformers; it keeps nothing
        self.tokens = tokens
        self._block = block
        self.keys = [_zeros((s.heads, tokens + 1, s.key_width), s) for s in shapes]
        self.values = [_zeros((s.heads, tokens + 1, s.value_width), s) for s in shapes]
        self._ranges: list[Range] = []  # by start
        self.moved = 0

    @property
    def free(self) -> int:
        return self.tokens - sum(r.size for r in self._ranges)

    @property
    def is_empty(self) -> bool:
        """Whether no request has a place."""
        return not self._ranges

    def size_of(self, tokens: int) -> int:
        """Places that a range of so many tokens takes."""
        return -(-tokens // self._block) * self._block

    def take(self, tokens: int) -> Range | None:
        """Take the smallest gap that is large enough; ranges move only if all gaps are too small.

        Returns None if too few tokens are free.
        """
        size = self.size_of(tokens)
        if size > self.free:
            return None
        gap = self._gap(size)
        if gap is None:
            self._compact()
            gap = self._gap(size)
            assert gap is not None
        index, start = gap
        made = Range(start, size)
        self._ranges.insert(index, made)
        self._clear(made)
        return made

    def give(self, range: Range) -> None:
        """Free a range."""
        self._ranges.remove(range)

    def copy(self, source: Range, target: Range, tokens: int) -> None:
        """Copy the first tokens of one range to another: a fork."""
        self.move(source.start, target.start, tokens)
        target.filled = tokens

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy keys and values from places to others."""
        if self.others is not None:
            self.others.moved(source, target, tokens)
        for held in (*self.keys, *self.values):
            values = held[:, source : source + tokens]
            # they may overlap
            held[:, target : target + tokens] = values.clone() if abs(target - source) < tokens else values

    def clear(self, start: int, tokens: int) -> None:
        """Set values to zero."""
        if self.others is not None:
            self.others.cleared(start, tokens)
        for held in self.values:
            held[:, start : start + tokens].zero_()

    def _compact(self) -> None:
        """Move all ranges to the beginning, in their order."""
        place = 0
        for range in self._ranges:
            if range.start != place:
                self.move(range.start, place, range.filled)
                self.moved += range.filled
                range.start = place
                self._clear(range)
            place += range.size

    def _clear(self, range: Range) -> None:
        """Let the places of a range that has no values yet hold zeros, if attention reads them."""
        if self._block > 1:
            self.clear(range.start + range.filled, range.size - range.filled)

    def _gap(self, size: int) -> tuple[int, int] | None:
        """Index in the ranges and start of the smallest gap for `size` tokens."""
        best: tuple[int, int, int] | None = None
        place = 0
        edges = [(r.start, r.start + r.size) for r in self._ranges] + [(self.tokens, self.tokens)]
        for index, (start, end) in enumerate(edges):
            width = start - place
            if width >= size and (best is None or width < best[0]):
                best = (width, index, place)
            place = end
        return None if best is None else best[1:]

    # transformers' cache

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the keys and values of a pack, [1, heads, tokens, width], and return them."""
        step.show(layer_idx, "key", key_states)
        step.show(layer_idx, "value", value_states)
        if step.current().branches is not None:
            return key_states, value_states
        places = step.current().places(key_states.device)
        self.keys[layer_idx].index_copy_(1, places, key_states[0])
        self.values[layer_idx].index_copy_(1, places, value_states[0])
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """A pack has no single length, and its positions are given.

        Raises:
            UnknownAttention: always.
        """
        raise UnknownAttention("it reads the length of its cache, and the tokens of a pack have several")

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Sizes for a mask that is never made."""
        return query_length, 0


def _zeros(shape: tuple[int, int, int], of: LayerShape) -> torch.Tensor:
    """Zeros whose pages a CPU's system gives as tokens reach them; `torch.zeros` would write them all now."""
    if of.device.type != "cpu":
        return torch.zeros(shape, dtype=of.dtype, device=of.device)
    size = math.prod(shape) * of.dtype.itemsize
    return torch.from_numpy(np.zeros(size, np.uint8)).view(of.dtype).view(shape)
