"""Sizes of rows, sessions and batches, against numbers worked out by hand."""

from typing import Any

import pytest

from actograph import plans
from actograph.contract.models import HookInfo, ModelStructure
from actograph.contract.specs import CaptureSpec
from actograph.plans import Budget, CaptureNeed
from tests.support.structures import model_structure

HIDDEN, VOCAB, KV, PROMPT = 8, 100, 1000, 10
MIB = 1 << 20


def structure(**changes: Any) -> ModelStructure:
    hooks = {
        "resid_post.0": HookInfo(location="model.layers.0.output", width=HIDDEN, dtype="bfloat16"),
        "router_logits.0": HookInfo(location="model.layers.0.mlp.gate.output", width=3, dtype="float32"),
        "logits": HookInfo(location="lm_head.output", width=VOCAB, dtype="bfloat16"),
    }
    return model_structure(hooks, **{"dtype": "bfloat16"} | changes)


def memory(samples: int = 1, changes: dict[str, Any] | None = None, **sizes: Any) -> plans.BatchMemory:
    values = {"prompt_tokens": PROMPT, "max_tokens": 10} | sizes
    return plans.batch_memory(structure(**changes or {}), KV, CaptureNeed(), samples=samples, **values)


def size(capture: CaptureNeed | None = None, **budget: Any) -> int:
    values = {"device_bytes": 10**9, "host_buffer_bytes": 10**9, "cap": 16, "on_gpu": True} | budget
    return plans.batch_size(
        structure(), KV, capture or CaptureNeed(), Budget(**values), prompt_tokens=PROMPT, max_tokens=10
    )


def test_a_row_is_as_wide_as_its_hooks_in_their_dtypes() -> None:
    hooks = ["resid_post.0", "router_logits.0", "model.layers.0.mlp.up_proj.output"]
    assert plans.bytes_per_token(structure(), hooks) == 8 * 2 + 3 * 4 + 8 * 2
    assert plans.bytes_per_token(structure(), hooks, "float32") == (8 + 3 + 8) * 4
    chosen = CaptureSpec.model_validate({"features": {"indices": [2, 0]}}).features
    assert plans.bytes_per_token(structure(), hooks[:2], "model", chosen) == 2 * 2 + 2 * 4


def test_rows_of_ten_prompt_and_five_generated_tokens(subtests: pytest.Subtests) -> None:
    for positions, rows, tail in [
        ("all", 14, 5),
        ("prompt", 10, 1),
        ("generated", 4, 4),
        ("last", 1, 1),
        ("last_prompt", 1, 1),
        ({"stride": 4}, 4, 1),
        ([0, -1, 9, 12, 13, 14, 99], 4, 3),
        (["think", "answer"], 4, 4),
        (["prompt", "answer"], 14, 5),
    ]:
        with subtests.test(positions=positions, rows=rows, tail=tail):
            capture = CaptureSpec.model_validate({"positions": positions})
            assert plans.rows_of(structure(), "resid_post.0", capture, 10, 5) == rows
            assert plans.rows_of(structure(), "logits", capture, 10, 5) == tail


def test_a_session_is_its_rows_and_a_little_more() -> None:
    def stored(hooks: list[str], **spec: Any) -> int:
        capture = CaptureSpec(**spec)
        return plans.stored_bytes(structure(), hooks, capture, prompt_tokens=100, generated_tokens=11)

    assert stored([]) == 0
    rows = 110 * HIDDEN * 2
    assert rows < stored(["resid_post.0"]) < rows + 4096
    assert stored(["resid_post.0"], dtype="float32") - stored(["resid_post.0"]) == rows
    # logits have rows for generated tokens alone
    assert stored(["resid_post.0", "logits"]) - stored(["resid_post.0"]) < 11 * VOCAB * 2 + 512


def test_the_batch_is_the_largest_that_fits() -> None:
    assert size() == 16
    five = int((memory(5).device + 1) / plans.USABLE) + 1
    assert (size(device_bytes=five), size(device_bytes=five - 3), size(device_bytes=0)) == (5, 4, 1)
    # the writer empties a full buffer; only the rows of one hook cannot be divided
    need = CaptureNeed(prompt_rows=64 * MIB, largest_strip=MIB)
    assert size(need, host_buffer_bytes=64 * MIB, device_bytes=10**10) == 16
    assert size(need, host_buffer_bytes=7 * MIB, device_bytes=10**10) == 7
    # on a CPU the buffer is in the same memory
    few = CaptureNeed(prompt_rows=10, largest_strip=10)
    assert size(few, device_bytes=10**9, host_buffer_bytes=10**9, on_gpu=False) == 1
    assert size(device_bytes=five, host_buffer_bytes=10**9, on_gpu=False) == 5, "nothing is captured"
