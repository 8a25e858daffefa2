"""Sizes of rows, sessions and runs, against numbers worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from actograph.contract.models import HookInfo, ModelStructure
from actograph.contract.specs import CaptureSpec
from evals import plans
from evals.plans import RunMemory, SampleNeed
from tests.support.structures import model_structure

HIDDEN, VOCAB, KV = 8, 100, 1000
MIB = 1 << 20


def structure(**changes: Any) -> ModelStructure:
    hooks = {
        "resid_post.0": HookInfo(location="model.layers.0.output", width=HIDDEN, dtype="bfloat16"),
        "router_logits.0": HookInfo(location="model.layers.0.mlp.gate.output", width=3, dtype="float32"),
        "logits": HookInfo(location="lm_head.output", width=VOCAB, dtype="bfloat16", tail_only=True),
    }
    return model_structure(hooks, **{"dtype": "bfloat16"} | changes)


def room(**changes: Any) -> RunMemory:
    sizes = {"total": 10**9, "token_bytes": KV, "slots": 16, "context": 2000, "row_bytes": 100 * MIB}
    return plans.run_memory(**sizes | {"on_gpu": True} | changes)


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
    assert rows < stored(["resid_post.0"]) < rows + 5120
    assert stored(["resid_post.0"], dtype="float32") - stored(["resid_post.0"]) == rows
    # logits have rows for generated tokens alone
    assert stored(["resid_post.0", "logits"]) - stored(["resid_post.0"]) < 11 * VOCAB * 2 + 512


def test_a_run_leaves_what_its_passes_take() -> None:
    gib = 1 << 30
    assert plans.run_bytes(10 * gib, 2 * gib) == 7 * gib, "and a GiB for libraries"
    assert plans.run_bytes(gib, 2 * gib) == 0
    assert plans.run_bytes(10**9, None) == 6 * 10**8, "a share where no pass was measured"


def test_a_run_divides_its_memory_into_keys_and_rows() -> None:
    on_gpu = room()
    assert (on_gpu.tokens, on_gpu.for_keys) == (16 * 2000, 32 * 10**6), "no more than the slots can fill"
    assert (on_gpu.for_staging, on_gpu.for_rows) == (10**9 - 32 * 10**6, 100 * MIB)
    full = room(slots=10**6)
    assert full.for_staging == pytest.approx(100 * MIB, abs=KV), "keys leave room for rows on their way"
    assert full.for_keys + full.for_staging == full.total == 10**9
    small = room(total=100 * MIB, slots=10**6)
    assert small.for_staging == pytest.approx(25 * MIB, abs=KV), "and no more than a quarter of a small card"
    # on a CPU keys and rows are in the same memory
    on_cpu = room(total=6 * 10**8, on_gpu=False, slots=10**6, row_bytes=10**9)
    assert (on_cpu.for_keys, on_cpu.tokens) == (3 * 10**8, 3 * 10**5)
    assert (on_cpu.for_staging, on_cpu.for_rows) == (0, 3 * 10**8)


def test_a_sample_reserves_all_its_tokens_and_a_block_of_rows() -> None:
    def need(hooks: list[str], generated: int = 11, **spec: Any) -> SampleNeed:
        return plans.sample_need(
            structure(context_length=500),
            hooks,
            CaptureSpec(**spec),
            token_bytes=KV,
            prompt_tokens=100,
            generated_tokens=generated,
        )

    assert need([]) == SampleNeed(keys=110 * KV)
    assert need([], 0).keys == 100 * KV, "the last token is never run"
    row = HIDDEN * 2
    assert need(["resid_post.0"]) == SampleNeed(
        keys=110 * KV, staging=64 * row, block=64 * row, rows=110 * row
    )
    assert need(["resid_post.0"], dtype="float32").block == 2 * 64 * row
    assert need(["resid_post.0"], positions="last").rows == 64 * row
    assert need(["resid_post.0"], reduce="mean") == SampleNeed(keys=110 * KV, staging=64 * row)


def test_as_many_samples_run_at_once_as_keys_and_blocks_allow() -> None:
    need = SampleNeed(keys=10**6, staging=MIB, block=2 * MIB, rows=9 * MIB)
    assert plans.samples_at_once(room(), need, 16) == 16
    assert plans.samples_at_once(room(total=8 * 10**6), need, 16) == 6
    assert plans.samples_at_once(room(total=0), need, 16) == 1
    assert plans.samples_at_once(room(row_bytes=9 * MIB), need, 16) == 4
    assert plans.samples_at_once(room(row_bytes=9 * MIB, on_gpu=False), need, 16) == 4, "staging is in it too"


def test_a_device_holds_keys_and_rows_on_their_way() -> None:
    need = SampleNeed(keys=10**6, staging=MIB, block=2 * MIB, rows=9 * MIB)
    assert plans.fits_device(room(), need, 32)
    assert not plans.fits_device(room(), need, 33)
    assert not plans.fits_device(room(total=3 * MIB), need), "a quarter is for rows, and these take more"
    assert plans.fits_device(room(total=3 * MIB), replace(need, staging=0))
