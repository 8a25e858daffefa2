"""Models that streaming refuses, and why."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    FalconConfig,
    GenerationConfig,
    LlamaConfig,
    MambaConfig,
    Qwen3NextConfig,
)

from tests.support.streaming_runs import CONFIGS, Pair, assert_same, build, planned, prompts, requests_of
from worker.engine.streaming import registration
from worker.engine.streaming.engine import StreamingEngine
from worker.engine.streaming.slots import shapes_of
from worker.engine.streaming.verification import refusal, verify

_SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": None,
}
_LLAMA: dict[str, Any] = {
    **_SMALL,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
}
_LATENT: dict[str, Any] = {
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}
_MAMBA: Any = MambaConfig
_GENERATION: Any = GenerationConfig
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "state space": (
        lambda: _MAMBA(**_SMALL, state_size=4, expand=2, conv_kernel=4, max_position_embeddings=160),
        "its forward takes no position_ids",
    ),
    "linear attention": (
        lambda: Qwen3NextConfig(
            **{**_LLAMA, "num_hidden_layers": 4},
            head_dim=8,
            linear_num_value_heads=4,
            linear_num_key_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
        ),
        "it has layers of the kind linear_attention",
    ),
    "latent attention": (
        lambda: DeepseekV3Config(**{**_LLAMA, "num_key_value_heads": 4}, **_LATENT),
        "its cache holds something else than keys and values",
    ),
    "attention of its own": (
        lambda: FalconConfig(
            **_SMALL, num_attention_heads=4, new_decoder_architecture=False, max_position_embeddings=160
        ),
        "it fails",
    ),
    "positions by length": (
        lambda: LlamaConfig(
            **_LLAMA, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
        ),
        "its positions depend on the longest text of a batch (dynamic)",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_it_is_refused_with_a_reason(kind: str) -> None:
    config, reason = REFUSED[kind]
    engine, found = verify(build(config(), kind).hooks)
    assert engine is None
    assert found.startswith(reason)


def test_a_generation_config_that_only_generate_applies() -> None:
    traced = build(CONFIGS["llama"](), "llama")
    model: Any = traced.model.hf
    model.generation_config = _GENERATION(eos_token_id=1, suppress_tokens=[5])
    assert refusal(traced.model) == "its generation config sets suppress_tokens"


def test_other_tokens_are_found(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "decode_attention", lambda query, *_, **__: query * 0)
    engine, reason = verify(pair.traced.hooks)
    assert engine is None
    assert reason.startswith("it chooses other tokens for a prompt of")


def test_the_checkpoints_own_processors_apply() -> None:
    traced = build(CONFIGS["llama"](), "llama")
    model: Any = traced.model.hf
    model.generation_config = _GENERATION(
        eos_token_id=1, repetition_penalty=1.7, no_repeat_ngram_size=2, min_length=12
    )
    shapes = shapes_of(traced.model)
    assert shapes is not None
    pair = Pair(traced, StreamingEngine(traced.hooks, shapes))
    requests = requests_of(prompts([9, 2, 14]), top_logprobs=2)
    plan = planned(logit_bias={1: 2.0})
    desk, _ = pair.run(requests, plan)
    for request in requests:
        assert_same(desk.kept[request.key], pair.trace(request, plan))


def test_half_precision_is_compared_with_a_wider_margin() -> None:
    engine, reason = verify(build(CONFIGS["qwen3"](), "qwen3", torch.bfloat16).hooks)
    assert engine is not None, reason


def test_an_engine_verifies_its_streaming_engine_once_and_says_so_in_its_structure() -> None:
    engine = build(CONFIGS["llama"](), "llama")
    before = engine.structure
    assert before.streaming is None
    streaming = engine.streaming()
    assert streaming is not None
    assert engine.streaming() is streaming
    assert engine.streaming_refusal is None
    assert engine.structure.streaming is True
    assert engine.structure.streaming_refusal is None


def test_an_engine_says_why_its_model_does_not_stream() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    engine = build(LlamaConfig(**_LLAMA, rope_parameters=rope), "dynamic")
    assert engine.streaming() is None
    assert engine.streaming_refusal is not None
    assert engine.structure.streaming is False
    assert engine.structure.streaming_refusal == engine.streaming_refusal
