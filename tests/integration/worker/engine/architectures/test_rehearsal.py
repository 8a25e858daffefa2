"""Models beyond the list: right rows, or a refusal that names what failed, and never wrong rows."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BertConfig,
    BloomConfig,
    CohereConfig,
    DogeConfig,
    GraniteConfig,
    GraniteMoeConfig,
    MambaConfig,
    MptConfig,
    OpenAIGPTConfig,
    OPTConfig,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
    RobertaConfig,
    StableLmConfig,
    Zamba2Config,
)

from actograph.contract import hooks as grammar
from actograph.contract.errors import ModelRefused, UnknownHook
from actograph.contract.specs import SamplingSpec
from tests.support import architectures
from tests.support.engine_run import KeepingSink, generate, read_texts, reference, requests_for
from worker.engine.engine import Engine
from worker.engine.structure import moe

pytestmark = pytest.mark.integration

IDS: dict[str, Any] = architectures.IDS | {"pad_token_id": 0}
DENSE: dict[str, Any] = {k: v for k, v in architectures.COMMON.items() if k != "tie_word_embeddings"} | IDS
ENCODER = {k: v for k, v in DENSE.items() if k != "num_key_value_heads"}
OPT: dict[str, Any] = {
    **IDS,
    "hidden_size": 32,
    "ffn_dim": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "word_embed_proj_dim": 32,
    "max_position_embeddings": 160,
}
GRANITE: dict[str, Any] = {"residual_multiplier": 0.22, "embedding_multiplier": 12.0, "logits_scaling": 8.0}
ZAMBA: dict[str, Any] = {k: v for k, v in DENSE.items() if k != "num_key_value_heads"} | {
    "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
    "n_mamba_heads": 8, "mamba_d_state": 16, "use_mamba_kernels": False,
}  # fmt: skip
SERVED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    # name: config, points that it does not have
    "cohere": (lambda: CohereConfig(**DENSE), ("resid_mid", "logits")),
    "granite": (lambda: GraniteConfig(**DENSE, **GRANITE), ("logits",)),
    "granite_moe": (lambda: GraniteMoeConfig(**DENSE, num_local_experts=7, num_experts_per_tok=2), ()),
    "stablelm": (lambda: StableLmConfig(**DENSE, use_parallel_residual=True), ("resid_mid",)),
    "opt": (lambda: OPTConfig(**OPT), ("resid_mid", "mlp_in", "mlp_out")),
    "opt, norms after": (
        lambda: OPTConfig(**OPT, do_layer_norm_before=False),
        ("attn_in", "resid_mid", "mlp_in", "mlp_out", "final_norm"),
    ),
    "bloom": (
        lambda: BloomConfig(**IDS, hidden_size=32, n_layer=3, n_head=4),
        ("attn_out", "resid_mid", "mlp_out"),
    ),
    "mpt": (
        lambda: MptConfig(vocab_size=512, d_model=32, n_heads=4, n_layers=3, max_seq_len=160),
        ("mlp_out",),
    ),
    "qwen3_next": (
        lambda: Qwen3NextConfig(
            **DENSE | {"num_hidden_layers": 4}, head_dim=8, num_experts=7, num_experts_per_tok=2,
            moe_intermediate_size=16, shared_expert_intermediate_size=24, linear_num_value_heads=4,
            linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
        ),
        ("attn_in.0", "attn_out.0", "resid_mid.0"),
    ),
    "mamba": (
        lambda: MambaConfig(**IDS, hidden_size=32, num_hidden_layers=3, state_size=8),
        ("attn_in", "attn_out", "resid_mid", "mlp_in", "mlp_out"),
    ),
}  # fmt: skip
PROMPTS = [
    "Once upon a time there was a little girl who had 12 apples.",
    "a",
    "The cat and the dog",
    "One day",
]

Fresh = Callable[..., Engine]


def check_rows(engine: Engine, made: Sequence[Any], sink: Any) -> None:
    hooks = [h for h in engine.structure.hooks if grammar.point_of(h) not in moe.POINTS]
    for index, generation in enumerate(made):
        assert generation.error is None
        want = reference(engine, generation, hooks)
        for hook in hooks:
            rows = sink.rows(index, hook)
            expected = want[hook][sink.first_row(index, hook) :]
            assert rows.shape == expected.shape, hook
            scale = max(1.0, expected.abs().max().item())
            assert torch.allclose(rows, expected, rtol=1e-4, atol=2e-4 * scale), (index, hook)


@pytest.mark.covering(4)
@pytest.mark.parametrize("name", list(SERVED))
def test_rows_are_those_of_a_plain_forward(name: str, fresh: Fresh) -> None:
    config, lacks = SERVED[name]
    engine = fresh(config())
    missing = {hook for hook in engine.structure.unavailable if not hook.startswith(moe.POINTS)}
    assert missing >= set(lacks)
    sink = KeepingSink()
    requests = requests_for(engine, PROMPTS)
    hooks = list(engine.structure.hooks)
    made = generate(engine, requests, sampling=SamplingSpec(max_tokens=8), hooks=hooks, sink=sink)
    check_rows(engine, made, sink)


OWN_POSITIONS: dict[str, Callable[[], Any]] = {
    "bart": lambda: BartConfig(
        **IDS, d_model=32, encoder_layers=3, decoder_layers=3, decoder_attention_heads=4, decoder_ffn_dim=64,
        max_position_embeddings=160, is_decoder=True,
    ),
    "roberta": lambda: RobertaConfig(**ENCODER, is_decoder=True),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Module .* has a submodule named 'output'")
@pytest.mark.parametrize("name", OWN_POSITIONS)
def test_decoders_that_count_positions_from_their_cache_are_served(name: str, fresh: Fresh) -> None:
    engine = fresh(OWN_POSITIONS[name]())
    requests, hooks = requests_for(engine, PROMPTS), list(engine.structure.hooks)
    sink, read = KeepingSink(), KeepingSink()
    made = generate(engine, requests, sampling=SamplingSpec(max_tokens=8), hooks=hooks, sink=sink)
    check_rows(engine, made, sink)
    check_rows(engine, read_texts(engine, requests, hooks=hooks, sink=read), read)


@pytest.mark.filterwarnings("ignore:Module .* has a submodule named 'output'")
@pytest.mark.parametrize(
    ("config", "failed"),
    [
        (lambda: BertConfig(**ENCODER), r"resid_post.0 \(.*\): generating a token at a time gives other"),
        (
            lambda: OpenAIGPTConfig(vocab_size=512, n_embd=32, n_layer=3, n_head=4, n_positions=160),
            "fails when it generates",
        ),
        (
            lambda: RecurrentGemmaConfig(**DENSE, lru_width=32, attention_window_size=12),
            r"resid_post.0 \(.*\): .* gives other numbers",
        ),
        # two experts where the router wants to choose four
        (
            lambda: GraniteMoeConfig(**DENSE, num_local_experts=2, num_experts_per_tok=4),
            "fails when it reads a text",
        ),
    ],
    ids=["sees later tokens", "no cache", "state left over", "forward fails"],
)
def test_what_cannot_run_as_jobs_run_it_is_refused(
    config: Callable[[], Any], failed: str, fresh: Fresh
) -> None:
    with pytest.raises(ModelRefused, match=failed):
        fresh(config())


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_block_that_holds_attention_and_an_mlp_is_neither(fresh: Fresh, blocks: int) -> None:
    structure = fresh(Zamba2Config(**ZAMBA, num_mem_blocks=blocks, chunk_size=16, adapter_rank=8)).structure
    assert not {grammar.point_of(hook) for hook in structure.hooks} & {"attn_in", "attn_out", "mlp_out"}
    for point in ("attn_in", "attn_out"):
        reason = structure.unavailable[point]
        assert "shared_transformer is a Zamba2AttentionDecoderLayer, which holds a Zamba2MLP too" in reason
        with pytest.raises(UnknownHook, match="which holds a Zamba2MLP too"):
            grammar.expand([point], "all", [], structure)
    assert "model.layers.1.shared_transformer.self_attn.output" in structure.module_locations


def test_a_location_that_steps_show_otherwise_is_unavailable_with_the_reason(fresh: Fresh) -> None:
    """Doge's attention computes something of all cached values, anew in every step."""
    structure = fresh(DogeConfig(**DENSE, keep_window_size=160)).structure
    location = "model.layers.0.self_attn.dt_proj.output"
    assert location not in structure.module_locations and "attn_out.0" in structure.hooks
    with pytest.raises(UnknownHook, match="does not show one row of a fixed width for each token"):
        grammar.resolve(location, structure)
