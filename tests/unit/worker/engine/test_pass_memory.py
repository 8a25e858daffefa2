"""The run that measures a pass: it fills all slots, and its errors end it. Bytes: see test_fake_cuda.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.stream_run import stream_model
from worker.engine.capture.budget import Budget
from worker.engine.locations import ModelHooks
from worker.engine.packed.forward import PackedForward
from worker.engine.pass_hooks import PassHooks
from worker.engine.pass_memory import least_tokens, measure, measure_prompts
from worker.engine.slot import Slot

SLOTS, LONGEST = 9, 300


@pytest.fixture
def hooks(shared: Path) -> ModelHooks:
    return stream_model(shared, "llama")


class Watched(PackedForward):
    """Notes the parts of each pass."""

    def __init__(self, hooks: ModelHooks, **options: Any) -> None:
        super().__init__(hooks, Budget(1 << 30), **options)
        self.passes: list[list[int]] = []
        self.error: Exception | None = None

    def run(self, slots: Sequence[Slot], at_hooks: PassHooks) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        self.passes.append([slot.count for slot in slots])
        return super().run(slots, at_hooks)


def test_all_slots_decode_at_once_and_a_long_prompt_is_read(hooks: ModelHooks) -> None:
    forward = Watched(hooks, tokens=least_tokens(SLOTS) + LONGEST)
    assert measure(forward, SLOTS, LONGEST) == 0, "a CPU has no memory of its own"
    assert [1] * SLOTS in [counts[:SLOTS] for counts in forward.passes]
    assert sum(map(sum, forward.passes)) == least_tokens(SLOTS) + LONGEST - SLOTS, "nothing is shared or lost"


def test_one_pass_of_prompts_has_all_tokens(hooks: ModelHooks) -> None:
    """Several prompts if the context is short; rows of the widest point count, as they are and in float32."""
    widest = max(info.width for info in hooks.structure.module_tensors.values() if not info.tail_only)
    for tokens in (300, 1200):
        forward = Watched(hooks, tokens=tokens)
        assert measure_prompts(forward, tokens) == tokens * widest * (4 + 4)
        assert list(map(sum, forward.passes)) == [tokens]


def test_a_pass_that_fails_ends_the_run_with_its_error(hooks: ModelHooks) -> None:
    forward = Watched(hooks, tokens=least_tokens(SLOTS) + LONGEST)
    forward.error = RuntimeError("no such kernel")
    with pytest.raises(RuntimeError, match="no such kernel"):
        measure(forward, SLOTS, LONGEST)
