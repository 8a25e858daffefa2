"""Slots: which request has which, how many there are, and prompts that begin like another's."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker.engine.model import memory
from worker.engine.model.loaded import LoadedModel
from worker.engine.requests import GenerationRequest
from worker.engine.streaming.cache import LayerShape, SlotCache
from worker.engine.streaming.capture.record import RowRecord
from worker.engine.streaming.edits import RowEdits
from worker.engine.streaming.live import Live

#: a shorter common beginning is computed again: to copy it would save too little
MIN_SHARED = 16
#: rows of a prefix are not held once more for so few more tokens
_CLOSE = 64
#: rows at once by default
CPU_SLOTS, GPU_SLOTS = 32, 128
#: part of the free memory for keys and values
_USABLE = 0.5
#: capacities are multiples of it, and grow by a quarter at least
_UNIT = 64


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tokens that a new request need not compute."""

    source: Live
    tokens: int


class Slots:
    """Slots of one model during one run.

    The capacity follows the longest request so far, prompt and max_tokens together; the number of slots is
    what the memory then allows.

    Args:
        shapes: keys and values of each layer.
        most: slots; 0: the default of the device.
    """

    def __init__(self, model: LoadedModel, shapes: Sequence[LayerShape], *, most: int = 0) -> None:
        self._model = model
        on_gpu = model.device.type == "cuda"
        self.most = most or (GPU_SLOTS if on_gpu else CPU_SLOTS)
        self._budget = int(memory.available_bytes(model.device) * _USABLE)
        self.cache = SlotCache(shapes, slots=0, capacity=0, dtype=model.dtype, device=model.device)
        self._holders: list[Live | None] = []  # of each slot; the last one after it left
        self._free: list[int] = []  # the one that was left first comes first

    @property
    def free(self) -> int:
        """Number of free slots; all there may be before the first request."""
        return len(self._free) if self.cache.slots else self.most

    def fit(self, need: int, live: Sequence[Live]) -> bool:
        """Make slots of `need` tokens or more; False if too many requests are running for that."""
        if need <= self.cache.capacity:
            return bool(self._free)
        capacity = -(-max(need, self.cache.capacity * 5 // 4) // _UNIT) * _UNIT
        count = max(1, min(self.most, self._budget // (capacity * self.cache.token_bytes)))
        if any(row.slot >= count for row in live) or len(live) >= count:
            return False
        self.cache.resize(count, capacity, [(row.slot, row.computed) for row in live])
        taken = {row.slot: row for row in live}
        self._holders = [taken.get(slot) for slot in range(count)]
        self._free = [slot for slot in range(count) if slot not in taken]
        return True

    def shrink(self, most: int) -> None:
        """Give all memory back; from now on there are `most` slots at most."""
        self.most = max(1, most)
        self.cache.resize(0, 0, ())
        self._holders, self._free = [], []

    def take(self, prefix: Prefix | None) -> int:
        """Take a free slot: the prefix's own if that is free, else the one that was left first."""
        source = None if prefix is None else prefix.source
        own = source is not None and source.ended and source.slot in self._free
        slot = source.slot if source is not None and own else self._free[0]
        self._free.remove(slot)
        return slot

    def hold(self, live: Live) -> None:
        """Note who has a slot."""
        self._holders[live.slot] = live

    def leave(self, live: Live) -> None:
        """Free a slot; its keys and values stay until another request takes it."""
        live.leave()
        self._free.append(live.slot)

    def has(self, source: Live) -> bool:
        """Whether a slot still holds what a request computed."""
        return any(holder is source for holder in self._holders)

    def prefix(self, request: GenerationRequest, edits: RowEdits, record: RowRecord | None) -> Prefix | None:
        """The longest beginning of a prompt that a slot has, or will have soon."""
        if request.score_prompt or edits.signature is None:
            return None
        best: Prefix | None = None
        for source in self._holders:
            if source is None or source.edits.signature != edits.signature:
                continue
            tokens = common_tokens(request.prompt_ids, source.computed_ids)
            tokens = min(tokens, len(request.prompt_ids) - 1)
            if edits:  # generated tokens and a last prompt token may be edited otherwise
                tokens = min(tokens, source.prompt - 1)
            if source.ended:
                tokens = min(tokens, source.computed)
            if record is not None and record.kept.needs_prompt(tokens):
                tokens = _with_rows(source, record, tokens)
            if tokens >= MIN_SHARED and (best is None or tokens > best.tokens):
                best = Prefix(source, tokens)
        return best


def _with_rows(source: Live, record: RowRecord, tokens: int) -> int:
    """How many of the first tokens can be taken over with their rows."""
    if record.kept.chosen:
        return 0
    rows, own = source.held(record.buffers), source.record
    held = 0 if rows is None else rows.tokens
    if held and held <= tokens < held + _CLOSE:
        return held  # rows that are held already, rather than others for a few tokens more
    captures_alike = own is not None and own.buffers is record.buffers and not own.kept.chosen
    if own is not None and captures_alike and own.leading >= min(source.computed, tokens):
        return tokens
    return min(held, tokens)


def common_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return bisect_left(range(most), True, key=lambda n: one[: n + 1] != other[: n + 1])


def shapes_of(model: LoadedModel) -> list[LayerShape] | None:
    """Keys and values of each layer, from one tiny forward pass; None if a layer has none of its own."""
    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    with torch.inference_mode():
        output = model.hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=True)
    shapes = []
    for layer in getattr(getattr(output, "past_key_values", None), "layers", ()):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if not isinstance(keys, torch.Tensor) or not isinstance(values, torch.Tensor) or keys.ndim != 4:
            return None
        shapes.append(LayerShape(keys.shape[1], keys.shape[3], values.shape[1], values.shape[3]))
    return shapes if len(shapes) == int(model.text_config.num_hidden_layers) else None
