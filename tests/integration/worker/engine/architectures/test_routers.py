"""Routers: their points and rows, and that a router which is another thing is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock, Qwen3MoeTopKRouter

from actograph.contract import hooks as grammar
from actograph.contract.errors import ModelRefused, UnknownHook
from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import KeepingSink, generate, reference, requests_for
from worker.engine.engine import Engine

pytestmark = pytest.mark.integration

EngineOf = Callable[[str], Engine]
POINTS = ("router_logits", "expert_weights", "expert_indices")
TOP_K = "expert_indices are the top k of router_logits"
Fresh = Callable[..., Engine]


def test_dense_models_have_no_experts(engine_of: EngineOf) -> None:
    structure = engine_of("llama").structure
    assert (structure.num_experts, structure.experts_per_token) == (None, None)
    for point in POINTS:
        assert structure.unavailable[point] == "not a mixture-of-experts model"


def test_points_of_the_layers_that_have_a_router(engine_of: EngineOf) -> None:
    structure = engine_of("deepseek_v3").structure
    assert grammar.expand(["router_logits"], "all", [], structure) == ["router_logits.1", "router_logits.2"]
    assert grammar.expand(["expert_indices"], "0:2", [], structure) == ["expert_indices.1"]
    assert grammar.expand(["router_logits"], None, [], structure) == ["router_logits.1", "router_logits.2"]
    reason = "this layer's MLP is a DeepseekV3MLP, which has no router"
    for points, layers, hooks in (
        (["router_logits"], [0, 1], []),
        (["router_logits"], "0:1", []),
        ([], None, ["router_logits.0"]),
    ):
        with pytest.raises(UnknownHook, match=f"router_logits.0: {reason}"):
            grammar.expand(points, layers, hooks, structure)
    location = "model.layers[1].mlp.gate.output[2]"
    assert grammar.resolve(location, structure) == "expert_indices.1"


def test_numbers_of_experts_are_never_made_into_fractions(engine_of: EngineOf) -> None:
    engine = engine_of("olmoe")
    hooks = ["resid_post.1", *(f"{point}.1" for point in POINTS)]
    kept, converted = KeepingSink(), KeepingSink()
    request = requests_for(engine, ["The cat sat"])
    generate(engine, request, sampling=SamplingSpec(max_tokens=5), hooks=hooks, sink=kept)
    generate(
        engine, request, sampling=SamplingSpec(max_tokens=5), hooks=hooks, sink=converted, dtype="float16"
    )
    assert converted.rows(0, "expert_indices.1").dtype == torch.int64
    assert torch.equal(converted.rows(0, "expert_indices.1"), kept.rows(0, "expert_indices.1"))
    for hook in hooks[:3]:
        assert converted.rows(0, hook).dtype == torch.float16
        assert torch.equal(converted.rows(0, hook), kept.rows(0, hook).to(torch.float16))


def test_modules_below_the_router_by_their_path(engine_of: EngineOf) -> None:
    """Flattened tensors [batch * tokens, width] are rows of their tokens, whatever the padding."""
    engine = engine_of("deepseek_v2")
    hooks = ["model.layers.1.mlp.experts.input", "model.layers.1.mlp.experts.output"]
    assert set(hooks) <= set(engine.structure.module_locations)
    sink = KeepingSink()
    made = generate(
        engine,
        requests_for(engine, ["The cat sat on the mat", "a", "Tom has"]),
        sampling=SamplingSpec(max_tokens=6),
        hooks=hooks,
        sink=sink,
    )
    for i, generation in enumerate(made):
        for hook, expected in reference(engine, generation, hooks).items():
            assert torch.allclose(sink.rows(i, hook), expected, atol=1e-3), hook


def test_where_every_expert_is_chosen_logits_and_weights_are_not_mixed_up(fresh: Fresh) -> None:
    structure = fresh("mixtral", num_local_experts=2).structure
    assert structure.num_experts == structure.experts_per_token == 2
    assert structure.hooks["router_logits.0"].location == "model.layers.0.mlp.gate.output"
    assert structure.hooks["expert_weights.0"].location == "model.layers.0.mlp.gate.output.1"
    assert TOP_K in {p.rpartition(" (")[0] for p in structure.proofs}


def test_a_router_that_reads_the_tokens_in_another_order_is_refused(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        turned = hidden_states.transpose(0, 1)  # token by token, not sequence by sequence
        flat = turned.reshape(-1, hidden_states.shape[-1])
        _, weights, indices = self.gate(flat)
        return self.experts(flat, indices, weights).reshape(turned.shape).transpose(0, 1)

    monkeypatch.setattr(Qwen3MoeSparseMoeBlock, "forward", forward)
    structure = fresh("qwen3_moe").structure
    for point in POINTS:
        assert f"{point}.0" not in structure.hooks
    assert structure.num_experts is None
    # the flattened rows are no view of [batch, tokens, width], so nothing is claimed of them
    assert not [m for m in structure.module_locations if m.startswith("model.layers.0.mlp.gate.")]


def test_a_router_that_looks_at_its_neighbours_is_refused(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain: Any = Qwen3MoeTopKRouter.forward

    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        return plain(self, hidden_states + hidden_states.roll(1, 0))

    monkeypatch.setattr(Qwen3MoeTopKRouter, "forward", forward)
    # alone, a token has other neighbours than in its text: so has every token that is generated
    with pytest.raises(ModelRefused, match=r"resid_post.0 .* a token at a time gives other numbers"):
        fresh("qwen3_moe")


def test_a_router_that_answers_otherwise_when_it_is_asked_alone_is_refused(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The MLP sets something in it before each call, so its rows are no answers to `mlp_in` alone."""
    plain: Any = Qwen3MoeTopKRouter.forward

    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        return plain(self, hidden_states + self.__dict__.pop("shift", 0.0))

    def block(self: Any, hidden_states: torch.Tensor) -> Any:
        flat = hidden_states.view(-1, hidden_states.shape[-1])
        self.gate.__dict__["shift"] = 0.5
        _, weights, indices = self.gate(flat)
        return self.experts(flat, indices, weights).reshape(hidden_states.shape)

    monkeypatch.setattr(Qwen3MoeTopKRouter, "forward", forward)
    monkeypatch.setattr(Qwen3MoeSparseMoeBlock, "forward", block)
    structure = fresh("qwen3_moe").structure
    assert "one row of scores per token" in structure.unavailable["router_logits"]
    assert structure.hooks["mlp_out.0"].location == "model.layers.0.mlp.output"


def test_choices_that_do_not_reach_the_experts_are_refused(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        flat = hidden_states.view(-1, hidden_states.shape[-1])
        _, weights, indices = self.gate(flat)
        return self.experts(flat, (indices + 1) % 7, weights).reshape(hidden_states.shape)

    monkeypatch.setattr(Qwen3MoeSparseMoeBlock, "forward", forward)
    structure = fresh("qwen3_moe").structure
    assert "router_logits.0" in structure.hooks
    assert "no module was seen to take in" in structure.unavailable["expert_indices"]
    assert "no module was seen to take in" in structure.unavailable["expert_weights"]


def test_ids_that_name_no_experts_are_refused(fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    plain: Any = Qwen3MoeTopKRouter.forward

    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        logits, weights, indices = plain(self, hidden_states)
        return logits, weights, torch.zeros_like(indices)

    monkeypatch.setattr(Qwen3MoeTopKRouter, "forward", forward)
    structure = fresh("qwen3_moe").structure
    assert "do not name 2 of 7 experts" in structure.unavailable["expert_indices"]
