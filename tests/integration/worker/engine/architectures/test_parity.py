"""Every hook point of every architecture against transformers alone, for every token.

The oracle is a second forward pass over prompt and continuation at once, without cache or nnsight:
transformers' own `output_hidden_states`, and plain forward hooks on modules whose paths are found here by
reading the model's source, not by the structure under test.
Everything is float32. A router's choice is not continuous: two experts with all but equal scores may swap
places between a pass of several requests and one of a single request. The random weights are drawn wide, so
that scores lie apart, and each MoE test checks that the margin between the last expert chosen and the first
one left out exceeds the rounding by far, so a tie would be reported as what it is.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import PROMPTS, KeepingSink, generate, read_texts, requests_for
from tests.support.plain_forward import eager_calls, main_tensor
from worker.engine.engine import Engine
from worker.engine.messages import Generation

pytestmark = pytest.mark.integration

EngineOf = Callable[[str], Engine]
TEXTS = [*PROMPTS, "They went to the park to play with a red ball."]
TOKENS = 14
ROUTER = ("router_logits", "expert_weights", "expert_indices")
# Where the modules of a layer are: read off the architectures' source in transformers
LLAMA_LIKE = {
    "embed": "model.embed_tokens",
    "layer": "model.layers.{}",
    "attn_in": "model.layers.{}.input_layernorm",
    "attn_out": "model.layers.{}.self_attn",
    "mlp_in": "model.layers.{}.post_attention_layernorm",
    "mlp_out": "model.layers.{}.mlp",
    "final_norm": "model.norm",
    "logits": "lm_head",
    "router": "model.layers.{}.mlp.gate",
    "projection": "model.layers.{}.self_attn.o_proj",
}
GEMMA_LIKE = LLAMA_LIKE | {"mlp_in": "model.layers.{}.pre_feedforward_layernorm"}
PATHS: dict[str, dict[str, str]] = {
    "gemma2": GEMMA_LIKE,
    "gemma3": GEMMA_LIKE,
    "phi": LLAMA_LIKE
    | {
        "mlp_in": "model.layers.{}.input_layernorm",  # attention and MLP share one norm
        "attn_out": "model.layers.{}.self_attn",
        "projection": "model.layers.{}.self_attn.dense",
        "final_norm": "model.final_layernorm",
    },
    "gpt_oss": LLAMA_LIKE | {"router": "model.layers.{}.mlp.router"},
    "gpt2": {
        "embed": "transformer.wte",
        "layer": "transformer.h.{}",
        "attn_in": "transformer.h.{}.ln_1",
        "attn_out": "transformer.h.{}.attn",
        "projection": "transformer.h.{}.attn.c_proj",
        "mlp_in": "transformer.h.{}.ln_2",
        "mlp_out": "transformer.h.{}.mlp",
        "final_norm": "transformer.ln_f",
        "logits": "lm_head",
    },
    "falcon": {
        "embed": "transformer.word_embeddings",
        "layer": "transformer.h.{}",
        "attn_in": "transformer.h.{}.input_layernorm",
        "attn_out": "transformer.h.{}.self_attention",
        "mlp_in": "transformer.h.{}.input_layernorm",  # attention and MLP share one norm
        "mlp_out": "transformer.h.{}.mlp",
        "final_norm": "transformer.ln_f",
        "logits": "lm_head",
    },
    "gpt_neox": {
        "embed": "gpt_neox.embed_in",
        "layer": "gpt_neox.layers.{}",
        "attn_in": "gpt_neox.layers.{}.input_layernorm",
        "attn_out": "gpt_neox.layers.{}.attention",
        "projection": "gpt_neox.layers.{}.attention.dense",
        "mlp_in": "gpt_neox.layers.{}.post_attention_layernorm",
        "mlp_out": "gpt_neox.layers.{}.mlp",
        "final_norm": "gpt_neox.final_layer_norm",
        "logits": "lm_head",
    },
}
# What attention and MLP add to the stream where it is not their own output
NORMED_SUBLAYERS = {
    "gemma2": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "gemma3": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "olmo3": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "olmo2": ("post_attention_layernorm", "post_feedforward_layernorm"),
}


def oracle(name: str, engine: Engine, generation: Generation) -> dict[str, torch.Tensor]:
    """Hook -> [rows, width] from one plain forward over every token that was run."""
    paths, hf = PATHS.get(name, LLAMA_LIKE), engine.model.hf
    layers = int(engine.model.text_config.num_hidden_layers)
    got: dict[str, torch.Tensor] = {}
    added: dict[str, torch.Tensor] = {}
    handles = []

    def watch(path: str, take: Callable[[Any], None]) -> None:
        try:
            module = hf.get_submodule(path)
        except AttributeError:
            return  # the architecture has no such module; what must be there is asserted elsewhere
        handles.append(module.register_forward_hook(lambda _m, _a, output: take(output)))

    def keep(hook: str, into: dict[str, torch.Tensor]) -> Callable[[Any], None]:
        def take(output: Any) -> None:
            into[hook] = main_tensor(output)[0].clone()

        return take

    def keep_router(layer: int) -> Callable[[Any], None]:
        def take(output: Any) -> None:
            for point, tensor in zip(ROUTER, output, strict=True):
                got[f"{point}.{layer}"] = tensor.clone()  # one sequence, so [tokens, ...] as it is

        return take

    for point in ("embed", "final_norm", "logits"):
        watch(paths[point], keep(point, got))
    for layer in range(layers):
        for point in ("attn_in", "attn_out", "mlp_in", "mlp_out"):
            watch(paths[point].format(layer), keep(f"{point}.{layer}", got))
        for sublayer, norm in zip(("attn", "mlp"), NORMED_SUBLAYERS.get(name, ()), strict=False):
            watch(f"{paths['layer'].format(layer)}.{norm}", keep(f"{sublayer}.{layer}", added))
        watch(paths["layer"].format(layer), keep(f"resid_post.{layer}", got))
        if "router" in paths:
            watch(paths["router"].format(layer), keep_router(layer))
        if "projection" in paths and f"z.{layer}" in engine.structure.hooks:
            projection = hf.get_submodule(paths["projection"].format(layer))
            take = keep(f"z.{layer}", got)
            handles.append(projection.register_forward_pre_hook(lambda _m, args, take=take: take(args)))
    ids = torch.tensor([generation.prompt_ids + generation.generated_ids[:-1]])

    def attended(module: Any, given: dict[str, torch.Tensor]) -> None:
        for point, tensor in zip("qkv", given.values(), strict=True):
            got[f"{point}.{module.layer_idx}"] = tensor[0].transpose(0, 1).flatten(1).clone()

    try:
        with torch.inference_mode(), ExitStack() as stack:
            if "q.0" in engine.structure.hooks:
                stack.enter_context(eager_calls(hf, attended))
            output = hf(input_ids=ids, use_cache=False, output_hidden_states=True)
    finally:
        for handle in handles:
            handle.remove()
    for layer in range(layers):
        # hidden_states[i] goes into layer i; the last one has been through the final norm
        pre = output.hidden_states[layer][0]
        got[f"resid_pre.{layer}"] = pre
        if layer + 1 < layers:
            assert torch.equal(got[f"resid_post.{layer}"], output.hidden_states[layer + 1][0])
        attention = added.get(f"attn.{layer}", got[f"attn_out.{layer}"])
        mlp = added.get(f"mlp.{layer}", got[f"mlp_out.{layer}"])
        got[f"resid_mid.{layer}"] = pre + attention
        total = pre + attention + mlp
        assert torch.allclose(total, got[f"resid_post.{layer}"], rtol=1e-4, atol=1e-4)
    assert torch.equal(output.hidden_states[-1][0], got["final_norm"])
    return got


def margin(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """How far the least of the chosen experts' scores lies from any left out, at the closest token."""
    chosen = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, ids, True)
    scores = logits.gather(-1, ids)
    others = logits.masked_fill(chosen, torch.inf)
    return (scores.unsqueeze(-1) - others.unsqueeze(-2)).abs().min()


def check(name: str, engine: Engine, made: list[Generation], sink: Any) -> None:
    hooks = list(engine.structure.hooks)
    for i, generation in enumerate(made):
        assert generation.error is None
        prompt, generated = len(generation.prompt_ids), len(generation.generated_ids)
        rows = prompt + max(0, generated - 1)
        want = oracle(name, engine, generation)
        for hook in hooks:
            start = prompt - 1 if hook == "logits" and generated else 0
            assert sink.first_row(i, hook) == start
            got, expected = sink.rows(i, hook), want[hook][start:]
            assert got.shape == expected.shape == (rows - start, engine.structure.hooks[hook].width), hook
            assert got.dtype == expected.dtype, hook
            assert str(got.dtype) == f"torch.{engine.structure.hooks[hook].dtype}"
            point, _, layer = hook.partition(".")
            if point == "expert_indices":
                scores = want[f"router_logits.{layer}"]
                rounding = (sink.rows(i, f"router_logits.{layer}") - scores).abs().max().item()
                assert margin(scores, expected) > 5 * rounding, f"{hook}: a tie; change the seed"
                # DeepSeek's top-k is unsorted, so the order within a token is not defined
                assert torch.equal(got.sort(-1).values, expected.sort(-1).values), hook
                weights, others = sink.rows(i, f"expert_weights.{layer}"), want[f"expert_weights.{layer}"]
                assert close(by_id(got, weights), by_id(expected, others)), hook
            elif point != "expert_weights":
                assert close(got, expected), hook


def by_id(ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return weights.gather(-1, ids.argsort(-1))


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-4 * max(1.0, b.abs().max().item()))


def early_end(engine: Engine, requests: Any, sampling: SamplingSpec) -> int:
    """A token that ends some samples of the batch early, and not all of them."""
    made = generate(engine, requests, sampling=sampling)
    firsts = {g.generated_ids[0] for g in made}
    for token in [t for g in made for t in g.generated_ids[2:-2] if t not in firsts]:
        if not all(token in g.generated_ids for g in made):
            return token
    raise AssertionError("no token ends some samples and not others; change the seed")


def test_every_point_equals_an_independent_forward(
    architecture: str, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(architecture)
    requests = requests_for(engine, TEXTS)
    sampling = SamplingSpec(max_tokens=TOKENS, temperature=0.9)
    end = early_end(engine, requests, sampling)
    monkeypatch.setattr(engine.model.hf.generation_config, "eos_token_id", [end])
    hooks = list(engine.structure.hooks)

    batched, single = KeepingSink(), KeepingSink()
    made = generate(engine, requests, sampling=sampling, hooks=hooks, sink=batched)
    lengths = {len(g.generated_ids) for g in made}
    assert len(lengths) > 1 and max(lengths) == TOKENS  # ragged at both ends
    check(architecture, engine, made, batched)

    alone = generate(engine, requests[2:3], sampling=sampling, hooks=hooks, sink=single)
    assert alone[0].generated_ids == made[2].generated_ids
    check(architecture, engine, alone, single)


def test_reading_gives_every_point_of_every_token(architecture: str, engine_of: EngineOf) -> None:
    engine = engine_of(architecture)
    requests, sink = requests_for(engine, TEXTS), KeepingSink()
    check(
        architecture,
        engine,
        read_texts(engine, requests, hooks=list(engine.structure.hooks), sink=sink),
        sink,
    )


def test_greedy_tokens_are_those_of_transformers(architecture: str, engine_of: EngineOf) -> None:
    engine = engine_of(architecture)
    hf: Any = engine.model.hf
    requests = requests_for(engine, TEXTS)
    sampling = SamplingSpec(max_tokens=TOKENS)
    made = generate(engine, requests, sampling=sampling, hooks=["resid_post.1"], sink=KeepingSink())
    assert generate(engine, requests, sampling=sampling) == made
    for request, generation in zip(requests, made, strict=True):
        ids = torch.tensor([request.prompt_ids])
        with torch.inference_mode():
            plain = hf.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False,
                pad_token_id=0,
            )  # fmt: skip
        want = tuple(plain[0, ids.shape[1] :].tolist())
        assert generation.generated_ids == want
        assert generation.finish_reason == ("stop" if want[-1] in engine.model.eos_token_ids else "length")
