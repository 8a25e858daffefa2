"""The memory plan of a prefill: texts to read at once, and the memory that they take."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from actograph.contract.plans.batch_memory import (
    Budget,
    activation_bytes,
    attention_bytes,
    capture_need,
    held_rows_bytes,
)
from actograph.contract.resources import ModelStructure
from actograph.contract.specs import CaptureSpec


@dataclass(frozen=True, kw_only=True)
class PrefillPlan:
    """Batch size of a prefill, and the memory of one batch."""

    batch_size: int
    #: on the model's device: the forward pass, without rows
    forward_bytes: int
    #: captured rows on their way to main memory
    in_flight_bytes: int
    #: captured rows in main memory before they are written
    held_bytes: int

    @property
    def device_bytes(self) -> int:
        return self.forward_bytes + self.in_flight_bytes


def prefill_plan(
    structure: ModelStructure,
    hooks: Sequence[str],
    capture: CaptureSpec,
    budget: Budget,
    *,
    prompt_tokens: int,
    samples: int | None = None,
) -> PrefillPlan:
    """Plan as many texts as fit.

    The host's buffer does not divide the batch, since the writer empties a full buffer. The rows of one hook
    must fit.

    Args:
        hooks: as `hooks.expand` returns them.
        prompt_tokens: of the longest text.
        samples: texts in the batch, if their number is given.
    """
    usable = budget.usable_bytes
    if not budget.on_gpu and hooks:
        usable = max(0, usable - budget.host_buffer_bytes)  # in the same memory
    need = capture_need(structure, hooks, capture, prompt_tokens=prompt_tokens, generated_tokens=0)

    def forward_of(texts: int) -> int:
        each = activation_bytes(structure, prompt_tokens=prompt_tokens) + need.summaries
        return texts * each + attention_bytes(structure, prompt_tokens=prompt_tokens, samples=texts)

    def device_of(texts: int) -> int:
        return forward_of(texts) + need.in_flight(texts)

    batch = samples
    if batch is None:
        most = budget.cap
        if need.largest_strip:
            most = max(1, min(most, budget.host_buffer_bytes // need.largest_strip))
        batch = max(1, bisect_right(range(1, most + 1), usable, key=device_of))
    return PrefillPlan(
        batch_size=batch,
        forward_bytes=forward_of(batch),
        in_flight_bytes=need.in_flight(batch),
        held_bytes=held_rows_bytes(budget, need, need.prompt_rows, samples=batch),
    )
