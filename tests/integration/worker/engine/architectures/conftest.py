"""Every architecture that the structure is proved for, as a small model with random weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoTokenizer,
    DeepseekV2Config,
    DeepseekV3Config,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoConfig,
    OlmoeConfig,
    Phi3Config,
    PhiConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from worker.engine.engine import Engine

_IDS: dict[str, Any] = {"vocab_size": 512, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": None}
_COMMON: dict[str, Any] = {
    **_IDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
    "tie_word_embeddings": False,
}
_HEAD: dict[str, Any] = {"head_dim": 8}
# 7 experts: a number that no other width shares
_EXPERTS: dict[str, Any] = {"num_experts": 7, "num_experts_per_tok": 2}
_LATENT: dict[str, Any] = {
    **{k: v for k, v in _COMMON.items() if k != "num_key_value_heads"},
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}


@dataclass(frozen=True)
class Architecture:
    title: str
    config: Callable[[], Any]


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("Llama", lambda: LlamaConfig(**_COMMON)),
    "qwen2": Architecture("Qwen2", lambda: Qwen2Config(**_COMMON)),
    "qwen3": Architecture("Qwen3", lambda: Qwen3Config(**_COMMON, **_HEAD)),
    "mistral": Architecture("Mistral", lambda: MistralConfig(**_COMMON, **_HEAD, sliding_window=12)),
    "gemma": Architecture("Gemma", lambda: GemmaConfig(**_COMMON, **_HEAD)),
    "gemma2": Architecture("Gemma 2", lambda: Gemma2Config(**_COMMON, **_HEAD, sliding_window=12)),
    "gemma3": Architecture("Gemma 3", lambda: Gemma3TextConfig(**_COMMON, **_HEAD, sliding_window=12)),
    "phi": Architecture("Phi", lambda: PhiConfig(**_COMMON)),
    "phi3": Architecture("Phi-3", lambda: Phi3Config(**_COMMON)),
    "gpt2": Architecture(
        "GPT-2", lambda: GPT2Config(**_IDS, n_embd=32, n_layer=3, n_head=4, n_positions=160)
    ),
    "gpt_neox": Architecture(
        "GPT-NeoX",
        lambda: GPTNeoXConfig(**{k: v for k, v in _COMMON.items() if k != "num_key_value_heads"}),
    ),
    "falcon": Architecture(
        "Falcon",
        lambda: FalconConfig(
            **_IDS,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=160,
            new_decoder_architecture=False,
        ),
    ),
    "olmo": Architecture("OLMo", lambda: OlmoConfig(**_COMMON)),
    "olmo2": Architecture("OLMo 2", lambda: Olmo2Config(**_COMMON)),
    "olmo3": Architecture("OLMo 3", lambda: Olmo3Config(**_COMMON, sliding_window=12)),
    "mixtral": Architecture(
        "Mixtral",
        lambda: MixtralConfig(**_COMMON, num_local_experts=7, num_experts_per_tok=2),
    ),
    "olmoe": Architecture("OLMoE", lambda: OlmoeConfig(**_COMMON, **_EXPERTS)),
    "qwen2_moe": Architecture(
        "Qwen2-MoE",
        lambda: Qwen2MoeConfig(
            **_COMMON, **_EXPERTS, moe_intermediate_size=16, shared_expert_intermediate_size=24
        ),
    ),
    "qwen3_moe": Architecture(
        "Qwen3-MoE",
        lambda: Qwen3MoeConfig(
            **_COMMON, **_HEAD, **_EXPERTS, moe_intermediate_size=16, mlp_only_layers=[1], norm_topk_prob=True
        ),
    ),
    "deepseek_v2": Architecture(
        "DeepSeek-V2",
        lambda: DeepseekV2Config(**_LATENT, topk_method="group_limited_greedy", routed_scaling_factor=2.0),
    ),
    "deepseek_v3": Architecture("DeepSeek-V3", lambda: DeepseekV3Config(**_LATENT)),
    "gpt_oss": Architecture(
        "gpt-oss",
        lambda: GptOssConfig(
            **_COMMON, **_HEAD, num_local_experts=7, num_experts_per_tok=2, sliding_window=12
        ),
    ),
}

#: run by `make test`: separate and joint projections, norms after the blocks, experts
QUICK = ("llama", "gpt2", "gemma2", "qwen3_moe")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "architecture" in metafunc.fixturenames:
        cases = [
            name if name in QUICK else pytest.param(name, marks=pytest.mark.soak) for name in ARCHITECTURES
        ]
        metafunc.parametrize("architecture", cases, scope="session")


@pytest.fixture(scope="session")
def architectures() -> Mapping[str, Architecture]:
    return ARCHITECTURES


@pytest.fixture(scope="session")
def engine_for(shared: Path, random_engine_of: Callable[..., Engine]) -> Callable[[str], Engine]:
    """Key of an architecture -> an engine around a small model of it."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "stories260k")
    made: dict[str, Engine] = {}

    def make(name: str) -> Engine:
        if name not in made:
            made[name] = random_engine_of(ARCHITECTURES[name].config(), tokenizer, name)
        return made[name]

    return make
