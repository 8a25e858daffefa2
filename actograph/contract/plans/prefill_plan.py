"""The plan of a prefill: how many texts are read at once, and how many layers' rows are held at once."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from actograph.contract.plans.batch_memory import (
    Budget,
    CaptureNeed,
    activation_bytes,
    attention_bytes,
    capture_need,
    held_rows_bytes,
)
from actograph.contract.plans.layer_order import LayerOrder, chunks_of
from actograph.contract.resources import ModelStructure
from actograph.contract.specs import CaptureSpec


@dataclass(frozen=True, kw_only=True)
class PrefillPlan:
    """What is chosen, and the memory that the batch takes."""

    batch_size: int
    layers_per_pass: int
    #: where the model is: the forward pass, without rows
    forward_bytes: int
    #: captured rows that are on their way to main memory
    in_flight_bytes: int
    #: captured rows in main memory before they are written
    held_bytes: int

    @property
    def device_bytes(self) -> int:
        return self.forward_bytes + self.in_flight_bytes


def chunk_need(
    structure: ModelStructure,
    hooks: Sequence[str],
    capture: CaptureSpec,
    *,
    prompt_tokens: int,
    layers_per_pass: int,
) -> CaptureNeed:
    """The most that one text takes in a chunk of so many layers."""
    order = LayerOrder(structure)
    needs = [
        capture_need(
            structure,
            hooks[chunk.start : chunk.stop],
            capture,
            prompt_tokens=prompt_tokens,
            generated_tokens=0,
        )
        for chunk in chunks_of([order.layer_of(hook) for hook in hooks], layers_per_pass, order.end)
    ]
    return CaptureNeed(
        prompt_rows=max((need.prompt_rows for need in needs), default=0),
        largest_strip=max((need.largest_strip for need in needs), default=0),
        summaries=max((need.summaries for need in needs), default=0),
    )


def prefill_plan(
    structure: ModelStructure,
    hooks: Sequence[str],
    capture: CaptureSpec,
    budget: Budget,
    *,
    prompt_tokens: int,
    samples: int | None = None,
    layers_per_pass: int | None = None,
) -> PrefillPlan:
    """As many texts as fit, then as many layers as fit into the host's buffer with so many texts.

    Args:
        hooks: in execution order, as `hooks.expand` gives them.
        prompt_tokens: of the longest text.
        samples: texts that will be run, where that is settled.
        layers_per_pass: where the job says it.
    """
    order = LayerOrder(structure)
    layers = max(1, len({order.layer_of(hook) for hook in hooks}))
    usable = budget.usable_bytes
    if not budget.on_gpu and hooks:
        usable = max(0, usable - budget.host_buffer_bytes)  # in the same memory

    def need_of(size: int) -> CaptureNeed:
        return chunk_need(structure, hooks, capture, prompt_tokens=prompt_tokens, layers_per_pass=size)

    def forward_of(need: CaptureNeed, texts: int) -> int:
        each = activation_bytes(structure, prompt_tokens=prompt_tokens) + need.summaries
        return texts * each + attention_bytes(structure, prompt_tokens=prompt_tokens, samples=texts)

    def device_of(need: CaptureNeed, texts: int) -> int:
        return forward_of(need, texts) + need.in_flight(texts)

    batch = samples
    if batch is None:
        need = need_of(layers_per_pass or 1)
        most = budget.cap
        if need.largest_strip:  # the rows of one hook are not divided; the buffer is emptied when it is full
            most = max(1, min(most, budget.host_buffer_bytes // need.largest_strip))
        batch = max(1, bisect_right(range(1, most + 1), usable, key=lambda texts: device_of(need, texts)))
    size = layers_per_pass
    if size is None:
        wider = (
            n
            for n in range(layers, 1, -1)
            if (need := need_of(n)).prompt_rows * batch <= budget.host_buffer_bytes
            and device_of(need, batch) <= usable
        )
        size = next(wider, 1)
    size = min(size, layers)
    need = need_of(size)
    return PrefillPlan(
        batch_size=batch,
        layers_per_pass=size,
        forward_bytes=forward_of(need, batch),
        in_flight_bytes=need.in_flight(batch),
        held_bytes=held_rows_bytes(budget, need, need.prompt_rows, samples=batch),
    )
