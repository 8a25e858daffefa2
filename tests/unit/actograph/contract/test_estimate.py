"""Sizes of rows and sessions, against numbers worked out by hand."""

from typing import Any

import pytest

from actograph import plans as estimate
from actograph.contract.models import HookInfo, ModelStructure
from actograph.contract.specs import CaptureSpec

HIDDEN, VOCAB, CONTEXT = 8, 100, 64


def structure(**changes: Any) -> ModelStructure:
    hooks = {
        "resid_post.0": HookInfo(location="model.layers.0.output", width=HIDDEN, dtype="bfloat16"),
        "router_logits.0": HookInfo(location="model.layers.0.mlp.gate.output", width=3, dtype="float32"),
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


def test_a_row_is_as_wide_as_its_hooks_in_their_dtypes() -> None:
    hooks = ["resid_post.0", "router_logits.0", "model.layers.0.mlp.up_proj.output"]
    assert estimate.bytes_per_token(structure(), hooks) == 8 * 2 + 3 * 4 + 8 * 2
    assert estimate.bytes_per_token(structure(), hooks, "float32") == (8 + 3 + 8) * 4


def test_chosen_features_narrow_every_hook() -> None:
    hooks = ["resid_post.0", "router_logits.0"]
    first = CaptureSpec.model_validate({"features": {"first": 5}}).features
    chosen = CaptureSpec.model_validate({"features": {"indices": [2, 0]}}).features
    assert estimate.bytes_per_token(structure(), hooks, "model", first) == 5 * 2 + 3 * 4
    assert estimate.bytes_per_token(structure(), hooks, "model", chosen) == 2 * 2 + 2 * 4


def test_rows_of_ten_prompt_and_five_generated_tokens(subtests: pytest.Subtests) -> None:
    for positions, rows, tail in [
        ("all", 14, 5),
        ("prompt", 10, 1),
        ("generated", 4, 4),
        ("last", 1, 1),
        ("last_prompt", 1, 1),
        ({"stride": 4}, 4, 1),
        ({"stride": 100}, 1, 0),
        ([0, -1, 9, 12, 13, 14, 99], 4, 3),
        ("think", 4, 4),
        (["think", "answer"], 4, 4),
        (["prompt", "answer"], 14, 5),
        ("tool_result", 14, 5),
    ]:
        with subtests.test(positions=positions, rows=rows, tail=tail):
            capture = CaptureSpec.model_validate({"positions": positions})
            assert estimate.rows_of(structure(), "resid_post.0", capture, 10, 5) == rows
            assert estimate.rows_of(structure(), "logits", capture, 10, 5) == tail


def test_a_session_is_its_rows_and_a_little_more() -> None:
    def stored(hooks: list[str], **spec: Any) -> int:
        return estimate.stored_bytes(
            structure(), hooks, CaptureSpec(**spec), prompt_tokens=100, generated_tokens=11
        )

    assert stored([]) == 0
    rows = 110 * HIDDEN * 2
    assert rows < stored(["resid_post.0"]) < rows + 4096
    assert stored(["resid_post.0"], dtype="float32") - stored(["resid_post.0"]) == rows
    # logits have rows for generated tokens alone
    assert stored(["resid_post.0", "logits"]) - stored(["resid_post.0"]) < 11 * VOCAB * 2 + 512
