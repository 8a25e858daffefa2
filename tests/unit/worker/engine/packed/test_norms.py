"""RMS norms that run fused: found by what they compute, equal to the model's own, and verified with it."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tests.support.architectures import ARCHITECTURES, random_model
from worker.engine.forwards import Forwards
from worker.engine.model.loaded import LoadedModel
from worker.engine.packed import norms
from worker.engine.packed.norms import FusedNorms, NormKind, kind_of
from worker.engine.structure.structure import discover

#: norms of three layers and the last one, by architecture; the others have none
FUSED = {
    **dict.fromkeys(
        ("llama", "qwen2", "mistral", "gemma", "phi3", "mixtral", "qwen2_moe", "gpt_oss"), 2 * 3 + 1
    ),
    **dict.fromkeys(("qwen3", "qwen3_moe", "olmo2", "olmo3", "olmoe", "gemma2"), 4 * 3 + 1),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), 4 * 3 + 1),
    "gemma3": 6 * 3 + 1,
}


@pytest.fixture
def model_of(shared: Path) -> Callable[..., LoadedModel]:
    """Models whose norms have weights that matter."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "stories260k")

    def make(name: str, dtype: torch.dtype = torch.float32) -> LoadedModel:
        model = random_model(ARCHITECTURES[name].config(), tokenizer, name)
        generator = torch.Generator().manual_seed(1)
        for module in model.hf.modules():
            weight: Any = module._parameters.get("weight")
            if "Norm" in type(module).__name__ and weight is not None:
                weight.data += 0.3 * torch.randn(weight.shape, generator=generator)
        hf: Any = model.hf
        hf.to(dtype)
        return model

    return make


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_norms_of_all_architectures(
    name: str, model_of: Callable[..., LoadedModel], subtests: pytest.Subtests
) -> None:
    for dtype, unit in ((torch.float32, 1e-6), (torch.float16, 2**-10), (torch.bfloat16, 2**-7)):
        model: Any = model_of(name, dtype).hf
        fused = FusedNorms(model)
        with subtests.test("found", dtype=dtype):
            assert fused.count == FUSED.get(name, 0)
        own = {module: module.forward for module, _ in fused._forwards}
        for module in own:
            with subtests.test("equal", dtype=dtype), torch.inference_mode():
                x = 3 * torch.randn(1, 5, module.weight.shape[0]).to(dtype)
                due, shown = module(x), list[Tensor]()
                handle = module.register_forward_hook(partial(_show, shown))
                with fused.used():
                    got = module(x)
                handle.remove()
                assert got.dtype == due.dtype and torch.equal(shown[0], got)
                torch.testing.assert_close(got, due, rtol=2 * unit, atol=unit)
        assert {module: module.forward for module in own} == own, "the model's own, outside a pass"


def _show(shown: list[Tensor], _module: nn.Module, _args: Any, output: Tensor) -> None:
    shown.append(output)


class _Norm(nn.Module):
    """An RMS norm, and what subclasses change."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class _Centred(_Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(-1, keepdim=True))


class _OfGroups(_Norm):
    def forward(self, x: Tensor) -> Tensor:
        grouped = x.unflatten(-1, (2, 4))
        rooted = torch.rsqrt(grouped.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * (grouped * rooted).flatten(-2)


class _EpsilonElsewhere(_Norm):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.eps)


class _Gated(_Norm):
    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x if gate is None else x * gate)


class _Counting(_Norm):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))


class _Failing(_Norm):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("needs a GPU")


def test_what_is_no_rms_norm_keeps_its_forward(subtests: pytest.Subtests) -> None:
    with subtests.test("a norm"):
        assert kind_of(_Norm()) == NormKind(1e-5, 0.0)
    patched = _Norm()
    patched.forward = lambda x: x  # type: ignore[method-assign]
    others = [_Centred(), _OfGroups(), _EpsilonElsewhere(), _Gated(), _Counting(), _Failing(), patched]
    for module in [*others, nn.LayerNorm(8), nn.LayerNorm(8, bias=False), nn.RMSNorm(8), nn.Linear(8, 8)]:
        with subtests.test(type(module).__name__):
            assert FusedNorms(module).count == 0
    with subtests.test("rows of another dtype than the weight's"):
        norm = LlamaRMSNorm(8)
        x = torch.randn(2, 8).bfloat16()
        with FusedNorms(norm).used():
            assert norm(x).dtype == torch.float32


def test_packed_passes_are_verified_with_fused_norms(
    model_of: Callable[..., LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    subtests: pytest.Subtests,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(Forwards, "on_gpu", True)
    for name, dtype in (("qwen3", torch.float32), ("qwen3", torch.bfloat16), ("gemma2", torch.bfloat16)):
        hooks = discover(model_of(name, dtype))
        with subtests.test("they run", name=name, dtype=dtype):
            forwards = Forwards(hooks)
            assert forwards.reason is None and forwards._norms is not None
            assert "each of 13 norms is one kernel" in caplog.text
        caplog.clear()
        with subtests.test("wrong ones are found", name=name, dtype=dtype), monkeypatch.context() as patch:
            patch.setattr(norms, "_plain", _doubled)
            patch.setattr(norms, "_scaled", _doubled)
            assert FusedNorms(hooks.model.hf).count == 0, "by their own rows"
            patch.setattr(norms, "agrees", lambda *_: True)
            forwards = Forwards(hooks)
            assert forwards.reason is None and forwards._norms is None, "and by logits"
            said = "computes its norms in several kernels, which is slower: packed logits differ"
            assert said in caplog.text
        caplog.clear()


def _doubled(*of: Any) -> Tensor:
    x: Tensor = of[-1]
    return 2 * x


def test_a_cpu_runs_the_models_own_norms(model_of: Callable[..., LoadedModel]) -> None:
    forwards = Forwards(discover(model_of("qwen3")))
    assert forwards.reason is None and forwards._norms is None
