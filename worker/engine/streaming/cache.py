"""Keys and values of all rows in slots of one capacity, allocated once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from worker.engine.streaming import step


class LayerShape(NamedTuple):
    """Keys and values of one token in one layer."""

    key_heads: int
    key_width: int
    value_heads: int
    value_width: int

    @property
    def numbers(self) -> int:
        return self.key_heads * self.key_width + self.value_heads * self.value_width


class SlotCache(Cache):
    """Keys and values per layer, [slots, heads, capacity, width].

    transformers' attention modules call `update` with the keys and values of a packed step; they are written
    to the slots of `step.current()`. A slot keeps its tokens until another request takes it.

    Args:
        shapes: of each layer.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        *,
        slots: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layers: list[Any] = []  # read by transformers; it keeps nothing
        self._shapes = tuple(shapes)
        self._dtype, self._device = dtype, device
        self.slots, self.capacity = slots, capacity
        self.keys = [self._empty(slots, s.key_heads, capacity, s.key_width) for s in shapes]
        self.values = [self._empty(slots, s.value_heads, capacity, s.value_width) for s in shapes]

    def _empty(self, *shape: int) -> Tensor:
        # zeros: memory that no token has reached is not taken from the system on a CPU
        return torch.zeros(shape, dtype=self._dtype, device=self._device)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers."""
        return sum(shape.numbers for shape in self._shapes) * self._dtype.itemsize

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write a packed step's keys and values, [1, heads, tokens, width], and return them."""
        plan = step.current()
        for held, new in ((self.keys[layer_idx], key_states), (self.values[layer_idx], value_states)):
            rows = len(plan.slots)
            if rows:
                held[plan.slot_index, :, plan.position_index] = new[0, :, :rows].transpose(0, 1)
            for chunk in plan.chunks:
                end = chunk.start + chunk.stop - chunk.first
                held[chunk.slot, :, chunk.start : end] = new[0, :, chunk.first : chunk.stop]
        return key_states, value_states

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first tokens of one slot to another."""
        for held in (*self.keys, *self.values):
            held[target, :, :tokens] = held[source, :, :tokens]

    def resize(self, slots: int, capacity: int, kept: Sequence[tuple[int, int]]) -> None:
        """Change the number of slots and their capacity, one layer after the other.

        Args:
            kept: slots that keep their tokens and how many; they must be below the new number of slots.
        """
        for layers in (self.keys, self.values):
            for layer, old in enumerate(layers):
                new = self._empty(slots, old.shape[1], capacity, old.shape[3])
                for slot, tokens in kept:
                    new[slot, :, :tokens] = old[slot, :, :tokens]
                layers[layer] = new
        self.slots, self.capacity = slots, capacity

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: positions are given with every step."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Sizes for a mask that is never made."""
        return query_length, 0
