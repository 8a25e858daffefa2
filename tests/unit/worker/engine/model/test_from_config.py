"""Sizes by a config alone are those of the loaded model. All architectures: tests/soak/engine."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import MambaConfig, T5Config

from actograph.contract.errors import ModelRefused, UnknownHook
from evals import plans
from tests.support.architectures import ARCHITECTURES
from tests.support.config_sizes import assert_sizes
from worker.engine.capture import pool
from worker.engine.estimate import estimate
from worker.engine.model.from_config import sizes_of

CARD = 24 << 30


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "qwen3_moe"])
def test_weights_and_keys_are_exact(name: str, tmp_path: Path) -> None:
    config = ARCHITECTURES[name].config()
    config.tie_word_embeddings = name == "llama"
    assert_sizes(config, tmp_path)


def test_a_size_that_cannot_be_derived_is_refused_with_the_reason(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    plain: dict[str, Any] = ARCHITECTURES["llama"].config().to_dict()
    configs = {
        "nothing": (None, "config.json cannot be read"),
        "unknown": ({"model_type": "nobody"}, "config.json cannot be read"),
        "quantised": (plain | {"quantization_config": {"quant_method": "fp8"}}, "its weights are quantised"),
        "encoder": (T5Config().to_dict(), "only decoder-only models"),
        "recurrent": (
            MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=64).to_dict(),
            "Mamba",
        ),
        "heads": (plain, "cannot be divided among 3 ranks"),
        "no plan": (ARCHITECTURES["gpt2"].config().to_dict(), "no plan by which ranks share"),
    }
    for name, (config, reason) in configs.items():
        folder = tmp_path / name
        folder.mkdir()
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        with subtests.test(name), pytest.raises(ModelRefused, match=reason):
            sizes_of(str(folder), ranks=3 if name in ("heads", "no plan") else 1)


def test_a_card_is_planned_as_a_worker_plans_it(tmp_path: Path) -> None:
    config = ARCHITECTURES["qwen3_moe"].config()
    config.save_pretrained(tmp_path)
    order: dict[str, Any] = {
        "model": f"m={tmp_path}", "card_bytes": CARD, "tensor_parallel": 1, "slots": 8, "dtype": "bfloat16",
        "revision": None, "capture": {"points": ["resid_post", "router_logits"], "layers": "all"},
        "tokens": 77,
    }  # fmt: skip
    found = estimate(order)
    assert (found.model, found.dtype, found.fits, found.slots) == ("m", "bfloat16", True, 8)
    assert found.row_bytes_per_token == 3 * (32 + 7) * 2
    assert found.block_bytes == 64 * found.row_bytes_per_token
    assert found.run_bytes == CARD - found.weights_bytes - found.pass_bytes - found.spare_bytes
    assert [one.tokens for one in found.lengths] == [77, 160] and found.longest_tokens == 160
    small = estimate(order | {"card_bytes": found.spare_bytes + found.weights_bytes})
    assert (small.fits, small.slots, small.longest_tokens) == (False, 0, 0)
    assert {one.slots for one in small.lengths} == {0}
    for unknown in ("resid_pst.1", "model.layers.0.mlp.output"):
        with pytest.raises(UnknownHook, match="by the config alone"):
            estimate(order | {"capture": {"hooks": [unknown]}})


def test_the_plan_leaves_of_blocks_what_the_engine_leaves() -> None:
    assert plans.BLOCKS_LEFT == pool._LEFT
