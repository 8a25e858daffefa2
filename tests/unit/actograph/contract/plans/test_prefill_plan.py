"""The plan of a prefill, against numbers worked out by hand."""

from typing import Any

import pytest

from actograph.contract.plans import batch_memory
from actograph.contract.plans.prefill_plan import prefill_plan
from actograph.contract.resources import HookInfo, ModelStructure
from actograph.contract.row_selection import StatsSpec
from actograph.contract.specs import CaptureSpec

LAYERS, HIDDEN, VOCAB, TOKENS = 4, 8, 100, 10
#: one row of one hook, float32
ROW = 4 * HIDDEN
POSTS = [f"resid_post.{i}" for i in range(LAYERS)]
FORWARD = 16 * TOKENS * ROW
#: a truth value and two float32 for each pair of tokens
MASK = TOKENS**2 * 9
ALL = CaptureSpec()


def structure(**changes: Any) -> ModelStructure:
    hooks = {}
    for i in range(LAYERS):
        for point, side in (("resid_pre", "input"), ("resid_post", "output")):
            hooks[f"{point}.{i}"] = HookInfo(
                location=f"model.layers.{i}.{side}", width=HIDDEN, dtype="float32"
            )
    hooks["logits"] = HookInfo(location="lm_head.output", width=VOCAB, dtype="float32")
    values: dict[str, Any] = {
        "model": "demo",
        "architecture": "X",
        "num_layers": LAYERS,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "context_length": 64,
        "dtype": "float32",
        "device": "cuda:0",
        "num_parameters": 1000,
        "chat_template": False,
        "eos_token_ids": [],
        "hooks": hooks,
        "module_locations": [info.location for info in hooks.values()],
    }
    return ModelStructure(**values | changes)


def budget(**changes: Any) -> batch_memory.Budget:
    values = {"device_bytes": 10**7, "host_buffer_bytes": 10**7, "cap": 16, "on_gpu": True} | changes
    return batch_memory.Budget(**values)


@pytest.mark.parametrize(("room", "batch"), [(16 * TOKENS * ROW, 16), (3 * TOKENS * ROW, 3), (1, 1)])
def test_the_buffer_must_hold_the_rows_of_one_hook_alone(room: int, batch: int) -> None:
    plan = prefill_plan(structure(), POSTS, ALL, budget(host_buffer_bytes=room), prompt_tokens=TOKENS)
    assert plan.batch_size == batch
    # beside the buffer there are strips on their way to it
    rows = LAYERS * batch * TOKENS * ROW
    assert plan.in_flight_bytes == rows
    assert plan.held_bytes == min(room + rows, rows)


def test_a_given_number_of_samples_is_not_changed() -> None:
    room = budget(host_buffer_bytes=6 * TOKENS * ROW)
    assert prefill_plan(structure(), POSTS, ALL, room, prompt_tokens=TOKENS, samples=2).batch_size == 2


def test_the_device_holds_the_forward_and_on_a_gpu_the_rows() -> None:
    each = FORWARD + MASK + LAYERS * TOKENS * ROW
    device = int(2 * each / batch_memory.USABLE) + 1
    plan = prefill_plan(structure(), POSTS, ALL, budget(device_bytes=device), prompt_tokens=TOKENS)
    assert plan.batch_size == 2
    assert plan.device_bytes == 2 * each


def test_each_expert_that_a_token_goes_to_counts() -> None:
    dense = batch_memory.activation_bytes(structure(), prompt_tokens=TOKENS)
    routed = batch_memory.activation_bytes(
        structure(num_experts=64, experts_per_token=8), prompt_tokens=TOKENS
    )
    assert (dense, routed) == (FORWARD, FORWARD // 16 * (16 + 3 * 8))


def test_logits_have_a_row_for_each_token_and_statistics_none() -> None:
    plan = prefill_plan(structure(), ["logits"], ALL, budget(), prompt_tokens=TOKENS, samples=1)
    assert plan.held_bytes == TOKENS * 4 * VOCAB
    sums = CaptureSpec(stats=StatsSpec(tensors=False))
    one = prefill_plan(structure(), POSTS[:1], sums, budget(), prompt_tokens=TOKENS, samples=1)
    two = prefill_plan(structure(), POSTS[:2], sums, budget(), prompt_tokens=TOKENS, samples=1)
    assert one.held_bytes == 0
    # the mask is for several texts
    assert two.forward_bytes - FORWARD == 2 * (one.forward_bytes - FORWARD) > 0
