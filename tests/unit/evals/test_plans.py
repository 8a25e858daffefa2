"""Sizes of rows, sessions and runs, against numbers worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from actograph.contract.models import HookInfo, ModelStructure
from actograph.contract.specs import CaptureSpec
from evals import plans
from evals.plans import RowNeed, RunMemory, SampleNeed
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
    # a scale for each row
    assert plans.bytes_per_token(structure(), hooks, "float8_e4m3fn") == (8 + 4) + (3 + 4) + (8 + 4)
    reduced = CaptureSpec.model_validate({"dtype": "float8_e4m3fn", "reduce": "mean"})
    sizes = {"prompt_tokens": 5, "generated_tokens": 0}
    assert plans.tensor_bytes(structure(), hooks[:1], reduced, **sizes) == 8 * 4
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
    assert (on_gpu.for_blocks, on_gpu.for_rows) == (10**9 - 32 * 10**6, 100 * MIB)
    full = room(slots=10**6)
    assert full.for_blocks == pytest.approx(25 * 10**7, abs=KV), "keys leave a quarter for blocks of rows"
    assert full.for_keys + full.for_blocks == full.total == 10**9
    # on a CPU keys and rows are in the same memory
    on_cpu = room(total=6 * 10**8, on_gpu=False, slots=10**6, row_bytes=10**9)
    assert (on_cpu.for_keys, on_cpu.tokens) == (3 * 10**8, 3 * 10**5)
    assert (on_cpu.for_blocks, on_cpu.for_rows) == (0, 3 * 10**8)


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
    assert need(["resid_post.0"]) == SampleNeed(keys=110 * KV, held=RowNeed(block=64 * row), rows=110 * row)
    assert need(["resid_post.0"], dtype="float32").held.block == 2 * 64 * row
    assert need(["resid_post.0"], positions="last").rows == 64 * row
    held = need(["resid_post.0"], positions="generated[-9:]").held
    assert (held.block, held.held) == (64 * row, 9 * row), "those that wait for the end of the sample"


def test_rows_that_are_summed_up_take_a_block_and_their_sums(subtests: pytest.Subtests) -> None:
    """Blocks of such rows have the model's dtype, and are those that are delivered if these have it too."""
    row, moments = HIDDEN * 2, 6 * 8
    statistics: dict[str, Any] = {"reduce": "none", "stats": {"tensors": True}}
    for spec, held in [
        ({"reduce": "mean"}, RowNeed(summed=64 * row, sums=HIDDEN * 4)),
        ({"reduce": "max", "dtype": "float32"}, RowNeed(summed=64 * row, sums=HIDDEN * 2)),
        (statistics, RowNeed(block=64 * row, sums=HIDDEN * moments)),
        (
            statistics | {"dtype": "float32"},
            RowNeed(block=2 * 64 * row, summed=64 * row, sums=HIDDEN * moments),
        ),
        (
            {"stats": {"tensors": False, "threshold": 1.0}},
            RowNeed(summed=64 * row, sums=HIDDEN * (moments + 8)),
        ),
    ]:
        with subtests.test(**spec):
            found = plans.sample_need(
                structure(),
                ["resid_post.0"],
                CaptureSpec.model_validate(spec),
                token_bytes=KV,
                prompt_tokens=100,
                generated_tokens=11,
            )
            assert found.held == held


NEED = SampleNeed(keys=10**6, held=RowNeed(block=2 * MIB, sums=MIB, held=MIB), rows=9 * MIB)


def test_as_many_samples_run_at_once_as_keys_and_blocks_allow() -> None:
    assert plans.samples_at_once(room(), NEED, 16) == 16
    assert plans.samples_at_once(room(total=8 * 10**6, slots=2), SampleNeed(keys=10**6), 16) == 4
    assert plans.samples_at_once(room(total=0), NEED, 16) == 1
    assert plans.samples_at_once(room(row_bytes=12 * MIB), NEED, 16) == 4, (
        "a block and rows that wait, on the host"
    )
    assert plans.samples_at_once(room(row_bytes=12 * MIB, on_gpu=False), NEED, 16) == 3, "and sums, on a CPU"
    small = replace(room(), for_blocks=12 * MIB)
    assert plans.samples_at_once(small, NEED, 16) == 2, "a block and sums for each, and a block for no one"
    assert plans.samples_at_once(small, NEED, 3) == 3, "an eighth stays free only if all would be taken"
    assert plans.samples_that_fit(small, NEED, 16) == 2
    nothing = replace(room(), for_blocks=MIB)
    assert plans.samples_at_once(nothing, NEED, 16) == 1 and plans.samples_that_fit(nothing, NEED, 16) == 0


def test_the_choice_of_tokens_is_taken_in_pieces() -> None:
    assert plans.choice_bytes(4, 1000) == 48 * 4000
    cases = {
        (8 << 30, 10_000, 1 << 20): 8192,  # at most
        (8 << 30, 5000, 1 << 20): 4608,  # room for keys and values, in whole steps
        (8 << 30, 10_000, 256 << 20): 2048,  # an eighth of the memory
        (8 << 30, 10_000, 4 << 30): 512,  # at least
    }
    for (free, room, step), tokens in cases.items():
        assert plans.prompt_tokens(free, room, step) == tokens
    assert plans.choice_bytes(256, 1 << 17) == 48 * (1 << 24) + 11 * (1 << 24)


def test_a_device_holds_keys_and_blocks() -> None:
    assert plans.fits_device(room(), NEED, 32)
    assert not plans.fits_device(room(), NEED, 33)
    small = replace(room(), for_blocks=5 * MIB)
    assert plans.fits_device(small, NEED)
    assert not plans.fits_device(small, NEED, 2)
    assert plans.rows_fit(NEED.held, device=5 * MIB, host=3 * MIB)
    assert not plans.rows_fit(NEED.held, device=5 * MIB, host=3 * MIB - 1)
    assert not plans.rows_fit(NEED.held, device=5 * MIB - 1, host=3 * MIB)
    assert plans.rows_fit(NEED.held, device=None, host=4 * MIB)
    assert not plans.rows_fit(NEED.held, device=None, host=4 * MIB - 1)
