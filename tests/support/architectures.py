"""Every architecture that the structure is proved for, as a small model with random weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoConfig,
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


#: longer than any short text that a load could check
WINDOW = 48
_PLAIN = COMMON | {"pad_token_id": 0}
_LLAMA4: dict[str, Any] = {
    **COMMON,
    **_HEAD,
    "intermediate_size_mlp": 48,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "no_rope_layers": [1, 0, 1],
    "attn_temperature_tuning": False,
    "attention_chunk_size": 120,
}
_FULL = ["full_attention"] * 3


@dataclass(frozen=True)
class Switching:
    """A model that changes what it does at a number of tokens."""

    config: Callable[[], Any]
    refused: str | None = None  # of the reason why it does not run packed


def _of(kind: str, **fields: Any) -> Callable[[], Any]:
    return lambda: AutoConfig.for_model(kind, **fields)


#: models with windows, chunks and scales by position, which one short text does not show
SWITCHING: dict[str, Switching] = {
    "phimoe": Switching(
        _of(
            "phimoe",
            **COMMON,
            sliding_window=WINDOW,
            num_local_experts=4,
            num_experts_per_tok=2,
            router_jitter_noise=0.0,
        )
    ),
    "gpt_neo": Switching(
        _of(
            "gpt_neo",
            **IDS,
            hidden_size=32,
            num_layers=4,
            num_heads=4,
            window_size=WINDOW,
            max_position_embeddings=160,
            attention_types=[[["global", "local"], 2]],
            tie_word_embeddings=False,
        ),
        "its attention cannot be replaced",
    ),
    "qwen2": Switching(
        _of("qwen2", **COMMON, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)
    ),
    "mistral": Switching(_of("mistral", **COMMON, sliding_window=WINDOW)),
    "gemma2": Switching(_of("gemma2", **COMMON, **_HEAD, sliding_window=WINDOW)),
    "gemma3": Switching(_of("gemma3_text", **COMMON, **_HEAD, sliding_window=WINDOW)),
    "olmo3": Switching(_of("olmo3", **COMMON, sliding_window=WINDOW)),
    "gpt_oss": Switching(
        _of("gpt_oss", **COMMON, **_HEAD, num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW)
    ),
    "cohere2": Switching(_of("cohere2", **_PLAIN, sliding_window=WINDOW)),
    "starcoder2": Switching(_of("starcoder2", **COMMON, sliding_window=WINDOW)),
    "exaone4": Switching(_of("exaone4", **COMMON, sliding_window=WINDOW, sliding_window_pattern=4)),
    "smollm3": Switching(_of("smollm3", **_PLAIN, use_sliding_window=True, sliding_window=WINDOW)),
    "granite_swa": Switching(_of("granite_swa", **COMMON, sliding_window=WINDOW)),
    "llama4, plain": Switching(_of("llama4_text", **_LLAMA4, layer_types=_FULL)),
    "llama4, chunks": Switching(
        _of("llama4_text", **_LLAMA4 | {"attention_chunk_size": WINDOW}),
        "layers of the kind chunked_attention",
    ),
    "llama4, temperature": Switching(
        _of(
            "llama4_text",
            **_LLAMA4 | {"attn_temperature_tuning": True, "floor_scale": WINDOW},
            layer_types=_FULL,
        ),
        "it reads the length of its cache",
    ),
    # beyond every text, but the cache is read all the same
    "llama4, far temperature": Switching(
        _of(
            "llama4_text",
            **_LLAMA4 | {"attn_temperature_tuning": True, "floor_scale": 8192},
            layer_types=_FULL,
        ),
        "it reads the length of its cache",
    ),
    "bloom": Switching(
        _of("bloom", **IDS, hidden_size=32, n_layer=3, n_head=4), "its attention cannot be replaced"
    ),
    "falcon, alibi": Switching(
        _of(
            "falcon",
            **IDS,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=160,
            alibi=True,
            parallel_attn=False,
        ),
        "its attention cannot be replaced",
    ),
    # beyond its window it computes other rows with a cache than without one
    "doge": Switching(_of("doge", **COMMON, keep_window_size=160), "a mask of its own"),
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
