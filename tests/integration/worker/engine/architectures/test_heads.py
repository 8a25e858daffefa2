"""Points of heads, and attention computed from stored queries and keys, on every architecture."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3NextConfig

from actograph.attention_patterns import Patterns, patterns_of
from actograph.contract.resources import TensorInfo
from actograph.contract.specs import SamplingSpec
from tests.support.architectures import COMMON
from tests.support.engine_run import PROMPTS, KeepingSink, generate, requests_for
from worker.engine.engine import Engine
from worker.engine.messages import Edit, Request, RunOptions

pytestmark = pytest.mark.integration

EngineOf = Callable[[str], Engine]
#: without heads of their own, and a part of the reason
WITHOUT = {"falcon": "its attention is its own", "deepseek_v2": "(MLA)", "deepseek_v3": "(MLA)"}
SOFTCAP = {"gemma2": 50.0}
WINDOWED = ("mistral", "gemma2", "gemma3", "olmo3", "gpt_oss")


def stored(sink: KeepingSink, engine: Engine, layer: int, **asked: Any) -> Patterns:
    """Patterns from the rows that a run has kept of its first request."""
    rows = {f"{point}.{layer}": sink.rows(0, f"{point}.{layer}").float().numpy() for point in "qk"}
    tensors = {
        name: TensorInfo(shape=one.shape, dtype="F32", nbytes=one.nbytes) for name, one in rows.items()
    }
    return patterns_of(
        layer,
        attention=engine.structure.attention,
        features=None,
        turns=1,
        tensors=tensors,
        tokens_of=lambda hook: range(len(rows[hook])),
        read=lambda hook, start, stop: rows[hook][start:stop],
        **asked,
    )


def eager_weights(engine: Engine, ids: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    """Weights of each layer, [heads, tokens, tokens], by transformers alone."""
    hf: Any = engine.model.hf
    config = engine.model.text_config
    before = config._attn_implementation
    hf.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            output = hf(input_ids=torch.tensor([ids]), use_cache=False, output_attentions=True)
    finally:
        hf.set_attn_implementation(before)
    return [one[0].float().numpy() for one in output.attentions]


def test_attention_from_stored_rows_is_that_of_eager_attention(
    architecture: str, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(architecture)
    structure, config = engine.structure, engine.model.text_config
    if architecture in WITHOUT:
        assert not structure.attention
        for point in "qkvz":
            assert WITHOUT[architecture] in structure.unavailable[point]
        return
    layers = range(structure.num_layers)
    assert list(structure.attention) == list(layers)
    for layer, heads in structure.attention.items():
        assert heads.unproved is None
        key_heads = getattr(config, "num_key_value_heads", 4)
        assert (heads.heads, heads.key_heads, heads.width) == (4, key_heads, 8)
        assert heads.softcap == SOFTCAP.get(architecture)
        assert (heads.sinks is not None) == (architecture == "gpt_oss")
        for point, count in (("q", 4), ("k", key_heads), ("v", key_heads), ("z", 4)):
            assert structure.hooks[f"{point}.{layer}"].width == count * 8
    assert any(one.window for one in structure.attention.values()) == (architecture in WINDOWED)
    assert structure.attention[0].is_rotated == (architecture != "gpt2")

    monkeypatch.setattr("actograph.attention_patterns._BLOCK", 150)  # several blocks, each of some rows
    requests, sink = requests_for(engine, PROMPTS[:1]), KeepingSink()
    hooks = [f"{point}.{layer}" for point in "qk" for layer in layers]
    (made,) = generate(engine, requests, sampling=SamplingSpec(max_tokens=9), hooks=hooks, sink=sink)
    ids = made.prompt_ids + made.generated_ids[:-1]
    assert len(ids) > 24  # longer than the windows
    due = eager_weights(engine, ids)
    for layer in layers:
        whole = np.concatenate([*stored(sink, engine, layer).blocks()])
        assert whole.shape == stored(sink, engine, layer).shape == (len(ids), 4, len(ids))
        assert np.abs(whole.transpose(1, 0, 2) - due[layer]).max() <= 1e-4
        part = stored(sink, engine, layer, head=3, start=17, stop=20)
        (rows,) = part.blocks()
        assert np.abs(rows[:, 0] - due[layer][3, 17:20, :20]).max() <= 1e-4


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_traced_passes_show_and_change_the_same_heads(name: str, engine_of: EngineOf) -> None:
    engine = engine_of(name)
    hooks = [f"{point}.{layer}" for point in "qkvz" for layer in range(engine.structure.num_layers)]
    for point in (None, *"qkvz"):
        edits = () if point is None else (Edit(hook=f"{point}.1", op="scale", coefficient=-2.0),)
        requests = [replace(one, edits=edits) for one in requests_for(engine, PROMPTS[:2])]
        sinks = KeepingSink(), KeepingSink()
        sampling = SamplingSpec(max_tokens=5)
        packed, traced = (
            generate(
                engine, requests, sampling=sampling, hooks=hooks, sink=sink, options=RunOptions(traced=how)
            )
            for sink, how in zip(sinks, (False, True), strict=True)
        )
        for i, (one, other) in enumerate(zip(packed, traced, strict=True)):
            assert (one.error, other.error) == (None, None) and one.generated_ids == other.generated_ids
            for hook in hooks:
                assert torch.allclose(sinks[0].rows(i, hook), sinks[1].rows(i, hook), atol=1e-4), (
                    point,
                    hook,
                )


def test_a_model_with_linear_layers_has_heads_in_the_others(fresh: Callable[..., Engine]) -> None:
    engine = fresh(
        Qwen3NextConfig(
            **COMMON | {"num_hidden_layers": 2},
            layer_types=["linear_attention", "full_attention"],
            head_dim=8,
            num_experts=7,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=24,
            linear_num_value_heads=4,
            linear_num_key_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
        )
    )
    structure = engine.structure
    assert [*structure.attention] == [1] and structure.attention[1].unproved is None
    assert "GatedDeltaNet" in structure.unavailable["q.0"]
    # a gate changes what the heads give before it is projected
    assert "no module below" in structure.unavailable["z"]
    request, sink = Request(key="a", prompt_ids=tuple(range(3, 20)), seed=0), KeepingSink()
    generate(engine, [request], sampling=SamplingSpec(max_tokens=1), hooks=["q.1", "k.1"], sink=sink)
    made = np.concatenate([*stored(sink, engine, 1).blocks()])
    assert np.abs(made.transpose(1, 0, 2) - eager_weights(engine, request.prompt_ids)[-1]).max() <= 1e-4
