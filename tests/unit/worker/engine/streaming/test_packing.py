"""Packed linear layers give the plain ones' numbers, keep hooks and traces, and can be undone."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import nnsight
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, Qwen3Config, Qwen3MoeConfig
from transformers.pytorch_utils import Conv1D

from worker.engine.streaming import packing
from worker.engine.streaming.packing import pack, probe

SHAPE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "bos_token_id": None,
    "eos_token_id": None,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "tied": lambda: Qwen3Config(**SHAPE, tie_word_embeddings=True),
    "untied": lambda: Qwen3Config(**SHAPE, tie_word_embeddings=False, attention_bias=True),
    "experts": lambda: Qwen3MoeConfig(
        **SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
    ),
    "conv1d": lambda: GPT2Config(
        vocab_size=300, n_embd=64, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None
    ),
}
IDS = torch.arange(18).reshape(2, 9) * 7 % 300

ONEDNN: Any = torch.backends.mkldnn
pytestmark = pytest.mark.skipif(not ONEDNN.is_available(), reason="needs oneDNN")


def build(name: str) -> Any:
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(CONFIGS[name]()).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(std=0.2)
    return model


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest) -> Iterator[Any]:
    with torch.no_grad():
        yield build(request.param)


def logits(model: Any, ids: Tensor = IDS) -> Tensor:
    found: Tensor = model(ids).logits
    return found


def test_numbers_stay_and_come_back(model: Any) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plain = logits(model)
    assert probe(model) is None
    with pack(model) as packed:
        assert packed.layers >= 8
        torch.testing.assert_close(logits(model), plain, atol=1e-5, rtol=1e-5)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert torch.equal(logits(model), plain)
    assert packed.bytes == packed.layers == 0


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [0, 1, 2, 16, 33, 130])
@torch.no_grad()
def test_a_layer_takes_any_number_of_tokens_in_any_layout(tokens: int, bias: bool) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(70, 100, bias=bias))
    inputs = [
        torch.randn(tokens, 70),
        torch.randn(70, tokens).t(),
        torch.randn(tokens, 140)[:, ::2],
        torch.randn(1, tokens, 70),
        torch.randn(1, 70).expand(tokens, 70),
    ]
    plain = [model(given) for given in inputs]
    with pack(model):
        for given, wanted in zip(inputs, plain, strict=True):
            torch.testing.assert_close(model(given), wanted, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_weight_is_freed_unless_an_embedding_shares_it() -> None:
    tied, untied = build("tied"), build("untied")
    weights = [weakref.ref(m.model.layers[0].mlp.up_proj.weight.untyped_storage()) for m in (tied, untied)]
    with pack(tied) as one, pack(untied) as other:
        gc.collect()
        assert all(ref() is None for ref in weights)
        assert tied.lm_head.weight is tied.model.embed_tokens.weight
        assert tied.lm_head.weight.device.type == "cpu"
        assert tied.lm_head.weight.sum().isfinite()
        assert untied.lm_head.weight.device.type == "meta"
        assert untied.lm_head.weight.shape == (300, 64)
        with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
            untied.lm_head.weight.tolist()
        # oneDNN pads to whole blocks; the tied head is held twice
        assert one.bytes > 300 * 64 * 4
        assert other.bytes < one.bytes
        assert sum(p.numel() for p in tied.parameters()) == sum(p.numel() for p in build("tied").parameters())
    assert tied.lm_head.weight is tied.model.embed_tokens.weight


@torch.no_grad()
def test_bytes_are_what_the_packed_weights_hold_beyond_the_freed_ones() -> None:
    model = nn.Sequential(nn.Linear(128, 256, bias=False), nn.Linear(256, 128, bias=False))
    with pack(model) as packed:
        assert packed.bytes == 0  # whole blocks, nothing held twice


def test_hooks_see_and_change_values(model: Any) -> None:
    layer = next(module for module in model.modules() if type(module) in (nn.Linear, Conv1D))
    seen: list[Tensor] = []

    def change(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        seen.append(output)
        return output + 1

    plain = logits(model)
    handle = layer.register_forward_hook(change)
    changed = logits(model)
    with pack(model):
        found = logits(model)
        torch.testing.assert_close(found, changed, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(seen[1], seen[0], atol=1e-5, rtol=1e-5)
        handle.remove()
        torch.testing.assert_close(logits(model), plain, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(changed, plain, atol=1e-3)


@torch.no_grad()
def test_nnsight_traces_a_packed_model_as_a_plain_one() -> None:
    model = build("untied")
    traced: Any = nnsight.NNsight(model)

    def run() -> tuple[Tensor, Tensor]:
        with traced.trace(IDS):
            up = nnsight.save(traced.model.layers[0].mlp.up_proj.output)
            traced.model.layers[1].mlp.down_proj.input = traced.model.layers[1].mlp.down_proj.input * 2
            out = nnsight.save(traced.lm_head.output)
        return up, out

    plain = run()
    with pack(model):
        found = run()
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(plain[1], logits(model), atol=1e-3)


@torch.no_grad()
def test_threads_may_change_after_packing() -> None:
    before = torch.get_num_threads()
    model = nn.Sequential(nn.Linear(256, 512))
    given = torch.randn(40, 256)
    plain = model(given)
    try:
        torch.set_num_threads(1)
        with pack(model):
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                torch.testing.assert_close(model(given), plain, atol=1e-5, rtol=1e-5)
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def test_a_model_is_packed_once_and_by_its_classes_own_layers_alone() -> None:
    class Own(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + 1

    model = nn.Sequential(nn.Linear(64, 64), Own(64, 64))
    plain = model(torch.ones(2, 64))
    with pack(model) as packed, pack(model) as again:
        assert (packed.layers, again.layers) == (1, 0)
        torch.testing.assert_close(model(torch.ones(2, 64)), plain)


def test_gradients_are_refused() -> None:
    model = nn.Sequential(nn.Linear(64, 64))
    given = torch.ones(1, 64, requires_grad=True)
    with pack(model):
        with pytest.raises(RuntimeError, match="no gradients"):
            model(given)
        with torch.no_grad():
            model(given)


def test_probe_gives_the_reason() -> None:
    with torch.device("meta"):
        elsewhere = nn.Sequential(nn.Linear(4, 4))
    assert probe(elsewhere) == "the model has weights on meta; only a CPU packs weights"
    assert probe(nn.Sequential(nn.Embedding(4, 4))) == "the model has no plain linear layers"
    reason = probe(nn.Sequential(nn.Linear(4, 4).double()))
    assert reason is not None and reason.startswith("0: ")


def test_probe_finds_numbers_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(64, 64))
    assert probe(model) is None
    real = packing._linear_of
    monkeypatch.setattr(packing, "_linear_of", lambda *args: real(*args) * 1.001)
    assert "packed outputs differ" in str(probe(model))


@torch.no_grad()
def test_a_layer_that_fails_leaves_the_model_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    real, calls = torch.ops.mkldnn._reorder_linear_weight, iter((True, False))

    def fail_second(*args: Any) -> Any:
        if not next(calls):
            raise RuntimeError("out of memory")
        return real(*args)

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", fail_second)
    with pytest.raises(RuntimeError, match="out of memory"):
        pack(model)
    assert all(type(layer.weight) is nn.Parameter for layer in model)
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_is_packed_or_refused(dtype: torch.dtype) -> None:
    model = build("untied").to(dtype)
    plain = logits(model)
    reason = probe(model)
    if reason is not None:
        assert "path needs the cpu support" in reason
        return
    before = model.lm_head.weight.clone()
    with pack(model):
        torch.testing.assert_close(logits(model), plain, atol=0.05, rtol=0.05)
    assert torch.equal(model.lm_head.weight, before)
