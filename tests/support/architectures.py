"""Every architecture that the structure is proved for, as a small model with random weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
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
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from worker.engine.model.load import wrap_model
from worker.engine.model.loaded import LoadedModel

IDS: dict[str, Any] = {"vocab_size": 512, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": None}
COMMON: dict[str, Any] = {
    **IDS,
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
    **{k: v for k, v in COMMON.items() if k != "num_key_value_heads"},
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
    "llama": Architecture("Llama", lambda: LlamaConfig(**COMMON)),
    "qwen2": Architecture("Qwen2", lambda: Qwen2Config(**COMMON)),
    "qwen3": Architecture("Qwen3", lambda: Qwen3Config(**COMMON, **_HEAD)),
    "mistral": Architecture("Mistral", lambda: MistralConfig(**COMMON, **_HEAD, sliding_window=12)),
    "gemma": Architecture("Gemma", lambda: GemmaConfig(**COMMON, **_HEAD)),
    "gemma2": Architecture("Gemma 2", lambda: Gemma2Config(**COMMON, **_HEAD, sliding_window=12)),
    "gemma3": Architecture("Gemma 3", lambda: Gemma3TextConfig(**COMMON, **_HEAD, sliding_window=12)),
    "phi": Architecture("Phi", lambda: PhiConfig(**COMMON)),
    "phi3": Architecture("Phi-3", lambda: Phi3Config(**COMMON)),
    "gpt2": Architecture("GPT-2", lambda: GPT2Config(**IDS, n_embd=32, n_layer=3, n_head=4, n_positions=160)),
    "gpt_neox": Architecture(
        "GPT-NeoX", lambda: GPTNeoXConfig(**{k: v for k, v in COMMON.items() if k != "num_key_value_heads"})
    ),
    "falcon": Architecture(
        "Falcon",
        lambda: FalconConfig(
            **IDS,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=160,
            new_decoder_architecture=False,
        ),
    ),
    "olmo": Architecture("OLMo", lambda: OlmoConfig(**COMMON)),
    "olmo2": Architecture("OLMo 2", lambda: Olmo2Config(**COMMON)),
    "olmo3": Architecture("OLMo 3", lambda: Olmo3Config(**COMMON, sliding_window=12)),
    "mixtral": Architecture(
        "Mixtral", lambda: MixtralConfig(**COMMON, num_local_experts=7, num_experts_per_tok=2)
    ),
    "olmoe": Architecture("OLMoE", lambda: OlmoeConfig(**COMMON, **_EXPERTS)),
    "qwen2_moe": Architecture(
        "Qwen2-MoE",
        lambda: Qwen2MoeConfig(
            **COMMON, **_EXPERTS, moe_intermediate_size=16, shared_expert_intermediate_size=24
        ),
    ),
    "qwen3_moe": Architecture(
        "Qwen3-MoE",
        lambda: Qwen3MoeConfig(
            **COMMON, **_HEAD, **_EXPERTS, moe_intermediate_size=16, mlp_only_layers=[1], norm_topk_prob=True
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
            **COMMON, **_HEAD, num_local_experts=7, num_experts_per_tok=2, sliding_window=12
        ),
    ),
}


def random_model(config: Any, tokenizer: PreTrainedTokenizerBase, name: str) -> LoadedModel:
    """Random weights in this shape, wide enough that the tokens differ."""
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
    return wrap_model(model, tokenizer, name=name)
