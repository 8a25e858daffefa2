"""The plan of a prefill: how many texts are read at once, and how many layers' rows are held at once."""

from collections.abc import Sequence
from dataclasses import dataclass

from actograph.contract.estimate import USABLE, Budget, CaptureNeed, capture_need, prefill_bytes
from actograph.contract.layer_order import LayerOrder, chunks_of
from actograph.contract.resources import ModelStructure
from actograph.contract.specs import CaptureSpec


@dataclass(frozen=True, kw_only=True)
class PrefillPlan:
    """What is chosen, and the memory that the batch takes."""

    batch_size: int
    layers_per_pass: int
    #: where the model is: the forward and, on a GPU, what leaves it
    device_bytes: int
    #: rows in main memory before they go to the sink
    held_bytes: int


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
    """As many texts as fit with one layer's rows, then as many layers as fit with so many texts.

    Args:
        hooks: in execution order, as `hooks.expand` gives them.
        prompt_tokens: of the longest text.
        samples: texts that will be run, where that is settled.
        layers_per_pass: where the job says it.
    """
    order = LayerOrder(structure)
    layers = max(1, len({order.layer_of(hook) for hook in hooks}))
    forward = prefill_bytes(structure, prompt_tokens=prompt_tokens)
    usable = int(budget.device_bytes * USABLE)
    if not budget.on_gpu:
        usable = max(0, usable - budget.host_buffer_bytes)

    def of_one(size: int) -> tuple[int, int]:
        """Bytes of one text, on the device and in the host's buffer."""
        need = chunk_need(structure, hooks, capture, prompt_tokens=prompt_tokens, layers_per_pass=size)
        # in main memory the rows are in the host's buffer, which is set aside above
        return forward + (need.device_bytes if budget.on_gpu else need.summaries), need.prompt_rows

    batch = samples
    if batch is None:
        device, rows = of_one(layers_per_pass or 1)
        fits = usable // max(1, device)
        if rows:
            fits = min(fits, budget.host_buffer_bytes // rows)
        batch = max(1, min(budget.cap, fits))
    size = layers_per_pass
    if size is None:
        room = usable // batch, budget.host_buffer_bytes // batch
        wider = (n for n in range(layers, 1, -1) if all(a <= b for a, b in zip(of_one(n), room, strict=True)))
        size = next(wider, 1)
    size = min(size, layers)
    device, rows = of_one(size)
    return PrefillPlan(
        batch_size=batch,
        layers_per_pass=size,
        device_bytes=batch * device,
        held_bytes=min(budget.host_buffer_bytes, batch * rows),
    )
