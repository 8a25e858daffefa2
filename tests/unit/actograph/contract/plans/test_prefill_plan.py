"""The plan of a prefill, against numbers worked out by hand."""

from typing import Any

import pytest

from actograph.contract.plans import batch_memory
from actograph.contract.plans.prefill_plan import chunk_need, prefill_plan
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


@pytest.mark.parametrize(
    ("room", "batch", "layers"),
    [
        (16 * 4 * TOKENS * ROW, 16, 4),
        (16 * 4 * TOKENS * ROW - 1, 16, 3),
        (16 * 2 * TOKENS * ROW, 16, 2),
        (16 * TOKENS * ROW, 16, 1),
        (3 * TOKENS * ROW, 3, 1),
        (1, 1, 1),
    ],
)
def test_texts_first_then_layers(room: int, batch: int, layers: int) -> None:
    plan = prefill_plan(structure(), POSTS, ALL, budget(host_buffer_bytes=room), prompt_tokens=TOKENS)
    assert (plan.batch_size, plan.layers_per_pass) == (batch, layers)
    # beside the buffer there are strips on their way to it
    in_flight = min(6, layers) * batch * TOKENS * ROW
    assert plan.held_bytes == min(room + in_flight, batch * layers * TOKENS * ROW)


def test_a_job_may_say_the_layers_and_a_unit_its_samples() -> None:
    room = budget(host_buffer_bytes=6 * TOKENS * ROW)
    said = prefill_plan(structure(), POSTS, ALL, room, prompt_tokens=TOKENS, layers_per_pass=3)
    assert (said.batch_size, said.layers_per_pass) == (6, 3), (
        "the buffer must hold the rows of one hook alone"
    )
    settled = prefill_plan(structure(), POSTS, ALL, room, prompt_tokens=TOKENS, samples=2)
    assert (settled.batch_size, settled.layers_per_pass) == (2, 3)
    more = prefill_plan(structure(), POSTS, ALL, room, prompt_tokens=TOKENS, layers_per_pass=99)
    assert more.layers_per_pass == LAYERS


def test_the_device_holds_the_forward_and_on_a_gpu_the_rows() -> None:
    device = int(2 * (FORWARD + MASK + TOKENS * ROW) / batch_memory.USABLE) + 1
    plan = prefill_plan(structure(), POSTS, ALL, budget(device_bytes=device), prompt_tokens=TOKENS)
    assert (plan.batch_size, plan.layers_per_pass) == (2, 1)
    assert plan.device_bytes == 2 * (FORWARD + MASK + TOKENS * ROW)


def test_each_expert_that_a_token_goes_to_counts() -> None:
    dense = batch_memory.activation_bytes(structure(), prompt_tokens=TOKENS)
    routed = batch_memory.activation_bytes(
        structure(num_experts=64, experts_per_token=8), prompt_tokens=TOKENS
    )
    assert (dense, routed) == (FORWARD, FORWARD // 16 * (16 + 3 * 8))


def test_logits_have_a_row_for_each_token_and_statistics_none() -> None:
    need = chunk_need(structure(), [*POSTS, "logits"], ALL, prompt_tokens=TOKENS, layers_per_pass=4)
    assert need.prompt_rows == TOKENS * 4 * VOCAB  # the end is a chunk of its own
    sums = CaptureSpec(stats=StatsSpec(tensors=False))
    one = chunk_need(structure(), POSTS, sums, prompt_tokens=TOKENS, layers_per_pass=1)
    two = chunk_need(structure(), POSTS, sums, prompt_tokens=TOKENS, layers_per_pass=2)
    assert one.prompt_rows == 0 and two.summaries == 2 * one.summaries > 0
