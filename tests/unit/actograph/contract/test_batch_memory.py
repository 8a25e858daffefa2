"""The memory of a batch by part, against numbers worked out by hand."""

from typing import Any

import pytest

from actograph import plans as batch_memory
from actograph.contract.models import HookInfo, ModelStructure
from actograph.contract.specs import CaptureSpec
from actograph.plans import Budget, CaptureNeed

HIDDEN, VOCAB, CONTEXT, KV = 8, 100, 64, 1000
PROMPT = 10
MIB = 1 << 20


def structure(**changes: Any) -> ModelStructure:
    hooks = {
        "resid_post.0": HookInfo(location="model.layers.0.output", width=HIDDEN, dtype="bfloat16"),
        "logits": HookInfo(location="lm_head.output", width=VOCAB, dtype="bfloat16"),
    }
    values: dict[str, Any] = {
        "model": "demo",
        "architecture": "X",
        "num_layers": 1,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "context_length": CONTEXT,
        "dtype": "bfloat16",
        "device": "cpu",
        "num_parameters": 1000,
        "chat_template": False,
        "eos_token_ids": [],
        "hooks": hooks,
        "module_locations": [info.location for info in hooks.values()],
    }
    return ModelStructure(**values | changes)


def memory(samples: int = 1, capture: CaptureNeed | None = None, **sizes: Any) -> batch_memory.BatchMemory:
    changes = sizes.pop("structure", {})
    return batch_memory.batch_memory(
        structure(**changes),
        KV,
        capture or CaptureNeed(),
        samples=samples,
        **{"prompt_tokens": PROMPT, "max_tokens": 10} | sizes,
    )


def size(capture: CaptureNeed | None = None, *, structured: Any = None, **budget: Any) -> int:
    values = {"device_bytes": 10**9, "host_buffer_bytes": 10**9, "cap": 16, "on_gpu": True} | budget
    return batch_memory.batch_size(
        structure(**structured or {}),
        KV,
        capture or CaptureNeed(),
        Budget(**values),
        prompt_tokens=PROMPT,
        max_tokens=10,
    )


def room(samples: float, capture: CaptureNeed | None = None) -> int:
    """Free memory in which so many samples and a little more fit."""
    return int((memory(int(samples), capture).device + 1) / batch_memory.USABLE) + 1


def test_every_part_of_a_batch_is_counted() -> None:
    found = memory(3, scored=7)
    assert found.cache == 3 * 20 * KV
    assert found.logits == 3 * 3 * 4 * VOCAB
    assert found.activations == 3 * PROMPT * HIDDEN * 2 * 16
    assert found.attention == 3 * PROMPT**2 * (1 + 2 * 2)
    assert (found.scored, found.in_flight, found.summaries) == (7, 0, 0)
    assert found.device == 7 + found.cache + found.logits + found.activations + found.attention


def test_the_mask_of_a_padded_batch_grows_with_the_square_of_the_prompt() -> None:
    assert memory(4, prompt_tokens=30).attention == 9 * memory(4).attention
    assert memory(4, structure={"mask_bytes_per_pair": 3}).attention == 4 * PROMPT**2 * 3
    assert memory(4, structure={"mask_bytes_per_pair": 0}).attention == 0
    assert memory(1).attention == 0, "one prompt alone is not padded"
    eager = {"mask_bytes_per_pair": 0, "scores_bytes_per_pair": 42}
    assert memory(1, structure=eager).attention == PROMPT**2 * 42


def test_a_batch_that_only_reads_has_no_cache_and_no_step_of_logits() -> None:
    found = memory(3, max_tokens=0)
    assert (found.cache, found.logits) == (0, 0)
    assert (found.activations, found.attention) == (memory(3).activations, memory(3).attention) != (0, 0)


def test_each_expert_of_a_token_counts() -> None:
    routed = memory(structure={"num_experts": 64, "experts_per_token": 8})
    assert memory().activations * (16 + 3 * 8) == routed.activations * 16


def test_the_cache_stops_at_the_context_length() -> None:
    assert memory(max_tokens=20).cache - memory(max_tokens=10).cache == 10 * KV
    assert memory(max_tokens=CONTEXT - 10) == memory(max_tokens=CONTEXT)


def test_rows_on_their_way_are_six_strips_or_six_blocks() -> None:
    strips = CaptureNeed(prompt_rows=100 * MIB, largest_strip=2 * MIB)
    assert strips.in_flight(5) == 5 * 6 * 2 * MIB
    assert CaptureNeed(prompt_rows=3 * MIB, largest_strip=2 * MIB).in_flight(5) == 15 * MIB
    # 64 steps of 1 KiB for 4 samples; then 64 MiB; then one step, however large
    assert CaptureNeed(step=1024).in_flight(4) == 6 * 64 * 4 * 1024
    assert CaptureNeed(step=MIB).in_flight(4) == 6 * 64 * MIB
    assert CaptureNeed(step=MIB).in_flight(80) == 6 * 80 * MIB
    assert CaptureNeed().in_flight(5) == 0


def test_the_batch_is_the_largest_that_fits() -> None:
    assert size() == 16
    assert size(cap=200, device_bytes=10**9) == 200
    assert size(device_bytes=room(5)) == 5
    assert size(device_bytes=room(5) - 3) == 4
    assert size(device_bytes=0) == 1
    sums = CaptureNeed(summaries=10**6)
    assert size(sums, device_bytes=room(5)) == 1
    assert size(sums, device_bytes=room(5, sums)) == 5


def test_the_buffer_does_not_divide_the_batch() -> None:
    """The writer empties a full buffer; only the rows of one hook cannot be divided."""
    need = CaptureNeed(prompt_rows=64 * MIB, largest_strip=MIB)
    assert size(need, host_buffer_bytes=64 * MIB, device_bytes=10**10) == 16
    assert size(need, host_buffer_bytes=7 * MIB, device_bytes=10**10) == 7
    assert size(need, host_buffer_bytes=1, device_bytes=10**10) == 1


def test_on_a_cpu_the_buffer_comes_out_of_the_same_memory() -> None:
    need = CaptureNeed(prompt_rows=10, largest_strip=10)
    buffer = int(batch_memory.USABLE * (room(5, need) - room(2, need)))
    assert size(need, device_bytes=room(5, need), host_buffer_bytes=buffer) == 5
    assert size(need, device_bytes=room(5, need), host_buffer_bytes=buffer, on_gpu=False) == 2
    assert size(device_bytes=room(5), host_buffer_bytes=buffer, on_gpu=False) == 5, "nothing is captured"


def test_held_rows_are_bounded_by_the_buffer_and_what_is_on_its_way() -> None:
    need = CaptureNeed(prompt_rows=8 * MIB, largest_strip=MIB)
    budget = Budget(device_bytes=0, host_buffer_bytes=MIB, cap=1, on_gpu=True)
    assert batch_memory.held_rows_bytes(budget, need, 100 * MIB, samples=2) == MIB + 12 * MIB
    assert batch_memory.held_rows_bytes(budget, need, 100, samples=2) == 200


def test_the_setting_takes_the_place_of_the_default_cap(subtests: pytest.Subtests) -> None:
    for on_gpu, most, expected in [(True, 0, 256), (False, 0, 16), (True, 500, 500), (False, 3, 3)]:
        with subtests.test(on_gpu=on_gpu, most=most, expected=expected):
            assert batch_memory.batch_cap(on_gpu=on_gpu, most=most) == expected


def test_the_need_of_capturing_follows_from_the_whole_spec() -> None:
    def need(generated_tokens: int = 1, **fields: Any) -> CaptureNeed:
        capture = CaptureSpec.model_validate(fields)
        return batch_memory.capture_need(
            structure(),
            ["resid_post.0", "logits"],
            capture,
            prompt_tokens=20,
            generated_tokens=generated_tokens,
        )

    row, head = HIDDEN * 2, VOCAB * 2
    everything = CaptureNeed(prompt_rows=20 * row + head, largest_strip=20 * row, step=row + head)
    assert need() == everything
    assert need(0) == CaptureNeed(prompt_rows=20 * (row + head), largest_strip=20 * head)
    assert need(dtype="float32").prompt_rows == 2 * (20 * row + head)
    assert need(dtype="float32").step == row + head, "a step is copied as the model computes it"
    assert need(features={"first": 2}).prompt_rows == 20 * 4 + 4
    assert need(positions="generated") == need(positions="answer") == CaptureNeed(step=row + head)
    assert need(positions={"stride": 19}).prompt_rows == 2 * row + head
    assert need(positions="last") == CaptureNeed(prompt_rows=row + head, largest_strip=head)
    for summed in ({"reduce": "mean"}, {"stats": {"tensors": False}}):
        assert (need(**summed).prompt_rows, need(**summed).largest_strip) == (0, 0)
        assert need(**summed).step == row + head
        narrow = need(**summed, features={"first": 2})
        assert narrow.summaries * (HIDDEN + VOCAB) == need(**summed).summaries * 4 > 0
    both = need(stats={"threshold": 1.0})
    assert both.prompt_rows == need().prompt_rows
    assert both.summaries > need(stats=True).summaries > need(reduce="mean").summaries
