"""Quantised checkpoints: packed rows equal traced ones and transformers' own; oneDNN packs none."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import parametrize
from transformers import AutoModelForCausalLM

from actograph.contract import quantization
from actograph.contract.errors import ModelRefused
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.models import parse_served
from actograph.contract.specs import SamplingSpec
from evals import plans
from tests.support.engine_run import KeepingSink, generate, requests_for
from tests.support.quantized import FORMS, dense, quantized
from worker.analysis.model_files import folder_of
from worker.engine.engine import Engine
from worker.engine.loading import load_engine
from worker.engine.messages import RunOptions
from worker.engine.model.load import load_model
from worker.engine.packed.weights import PackedWeight, pack

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]  # of the packages

HOOKS = ["resid_post.0", "mlp_out.1", "logits"]
#: forms whose activations are rounded too: the proofs at load decide how they run, or that they do not
ROUNDED = {"torchao int8 with activations", "compressed-tensors W8A8", "compressed-tensors FP8"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dense(tmp_path_factory.mktemp("dense"))


def _engine(folder: Path, **options: Any) -> Engine:
    return load_engine(
        parse_served(f"m={folder}"), ModelLoadOptions(**options), RunOptions(slots=4), device="cpu"
    )


def _rows(engine: Engine) -> tuple[tuple[int, ...], dict[str, torch.Tensor]]:
    sink = KeepingSink()
    requests = requests_for(engine, ["Tom has 34 apples.", "The cat"])
    made = generate(engine, requests, sampling=SamplingSpec(max_tokens=8), hooks=HOOKS, sink=sink)
    ids = (*made[0].prompt_ids, *made[0].generated_ids[:-1])
    return ids, {hook: sink.rows(0, hook) for hook in HOOKS}


@torch.inference_mode()
def _theirs(folder: Path, ids: tuple[int, ...]) -> dict[str, torch.Tensor]:
    automatic: Any = AutoModelForCausalLM
    model = automatic.from_pretrained(folder).eval()
    text = torch.tensor([ids])
    model(input_ids=text)  # some methods unpack their weights here
    found: dict[str, torch.Tensor] = {}
    layers = model.model.layers
    layers[0].register_forward_hook(lambda _, __, out: found.update({"resid_post.0": out[0]}))
    layers[1].mlp.register_forward_hook(lambda _, __, out: found.update({"mlp_out.1": out[0]}))
    found["logits"] = model(input_ids=text, use_cache=False).logits[0]
    return {"resid_post.0": found["resid_post.0"].reshape(len(ids), -1), **{h: found[h] for h in HOOKS[1:]}}


@pytest.mark.parametrize("form", FORMS)
def test_rows_equal_traced_ones_and_those_of_transformers(
    form: str, base: Path, tmp_path: Path, as_traced: Any
) -> None:
    folder = quantized(form, base, tmp_path / "quantized")
    method = form.split(maxsplit=1)[0]
    try:
        engine = _engine(folder)
    except ModelRefused as error:
        assert form in ROUNDED
        assert f"quantised by {method}; where activations are quantised too" in error.message
        return
    structure = engine.structure
    assert structure.quantization == method
    assert (structure.unverified is not None) == (form in ROUNDED)
    assert structure.identity is not None and structure.identity.quantization == method
    assert structure.engine == "streaming" or form in ROUNDED
    with pytest.raises(ModelRefused, match=f"quantised by {method}, and an analysis reads dense ones"):
        folder_of(structure.identity, [parse_served(f"m={folder}")])
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert plans.weights_bytes(structure) == structure.weights_bytes
    if method == "torchao":
        assert structure.weights_bytes == pytest.approx(weights, rel=0.1)
    for module in engine.model.hf.modules():
        if isinstance(module._parameters.get("weight"), PackedWeight):
            assert method == "fp8" or module is engine.model.hf.get_output_embeddings()
    if form in ROUNDED:
        return  # not even transformers' own passes of other lengths agree
    ids, packed = _rows(engine)
    with as_traced(engine, True):
        traced_ids, traced = _rows(engine)
    expected = _theirs(folder, ids)
    assert traced_ids == ids
    for hook in HOOKS:
        close = {"atol": 1e-4, "rtol": 1e-4}
        torch.testing.assert_close(packed[hook], traced[hook], **close)
        torch.testing.assert_close(packed[hook], expected[hook][-len(packed[hook]) :], **close)


def test_an_fp8_checkpoint_is_unpacked_into_the_dtype_that_is_asked_for(base: Path, tmp_path: Path) -> None:
    folder = quantized("fp8", base, tmp_path / "fp8")
    for dtype in (torch.bfloat16, torch.float32):
        loaded = load_model(str(folder), device="cpu", dtype=str(dtype).removeprefix("torch."))  # type: ignore[arg-type]
        assert {one.dtype for one in loaded.hf.parameters()} == {dtype} == {loaded.dtype}


class Scaled(nn.Linear):
    """A subclass with a product of its own."""


class Halved(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / 2


def _other_layers() -> dict[str, nn.Module]:
    rounded = nn.Linear(8, 8)
    rounded.forward = lambda x: nn.functional.linear(x.round(), rounded.weight, rounded.bias)  # type: ignore[method-assign]
    integers, packed = nn.Linear(8, 8), nn.Linear(8, 8)
    integers.weight = nn.Parameter(torch.ones(8, 8, dtype=torch.int8), requires_grad=False)
    packed.weight = nn.Parameter(torch.ones(8, 8).to(torch.float8_e4m3fn), requires_grad=False)
    sparse = nn.Linear(8, 8)
    sparse.weight = nn.Parameter(torch.eye(8).to_sparse(), requires_grad=False)
    halved = nn.Linear(8, 8)
    parametrize.register_parametrization(halved, "weight", Halved())
    return {
        "a forward of its own": rounded, "integers": integers, "8-bit floats": packed, "sparse": sparse,
        "a subclass": Scaled(8, 8), "parametrized": halved,
    }  # fmt: skip


def test_only_dense_weights_of_floats_are_packed(
    base: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name, layer in _other_layers().items():
        with subtests.test(name):
            before = layer.forward
            assert pack(nn.Sequential(layer, nn.Linear(8, 8))).startswith("1 linear weights are packed")
            assert not any(isinstance(one, PackedWeight) for one in layer.parameters())
            assert layer.forward == before
    for form in FORMS:
        with subtests.test(form):
            folder = quantized(form, base, tmp_path / form.replace(" ", "-"))
            hf: Any = load_model(str(folder), device="cpu").hf
            ids = torch.arange(3, 30)[None]
            with torch.inference_mode():
                plain = hf(input_ids=ids, use_cache=False).logits
                said = pack(hf)
                torch.testing.assert_close(
                    hf(input_ids=ids, use_cache=False).logits, plain, atol=1e-4, rtol=1e-4
                )
            dense_layers = {"fp8": 15, "torchao": 1, "compressed-tensors": 0}[form.split()[0]]
            expected = (
                f"{dense_layers} linear" if dense_layers else "linear weights stay plain: the model has no"
            )
            assert said.startswith(expected), said


def _config(**found: Any) -> dict[str, Any]:
    return {"quantization_config": found}


def test_what_cannot_be_read_is_refused_with_the_reason(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for method, reason in (
        ("gptq", "pip install gptqmodel optimum"),
        ("awq", "pip install gptqmodel"),
        ("bitsandbytes", "pip install bitsandbytes"),
        ("no-such", "this version of transformers cannot read"),
    ):
        with subtests.test(method), pytest.raises(ModelRefused, match=reason):
            folder = tmp_path / method
            folder.mkdir()
            for file in base.iterdir():
                (folder / file.name).write_bytes(file.read_bytes())
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | _config(quant_method=method, bits=4)))
            load_model(str(folder), device="cpu")
    folder = quantized("torchao int8", base, tmp_path / "torchao")
    for options, reason in (
        ({"ranks": 2}, "2 ranks share it"),
        ({"device_map": "auto"}, "device_map spreads it"),
        ({"adapter": "org/sad"}, "an adapter is to be merged"),
    ):
        with subtests.test(reason), pytest.raises(ModelRefused, match=f"quantised by torchao, and {reason}"):
            load_model(str(folder), **options)  # type: ignore[arg-type]
    with subtests.test("no package"), monkeypatch.context() as patch:
        patch.setattr(quantization, "missing_package", lambda method: "'actograph[quantized]'")
        with pytest.raises(ModelRefused, match=r"pip install 'actograph\[quantized\]'"):
            load_model(str(folder), device="cpu")


def test_a_quantised_checkpoint_with_missing_weights_is_refused(base: Path, tmp_path: Path) -> None:
    folder = quantized("fp8", base, tmp_path / "fp8")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"], tensors["model.norm.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelRefused, match=r"weights of the fp8 checkpoint are missing .*model.norm.weight"):
        load_model(str(folder), device="cpu")


def test_methods_are_named_as_verified_or_not(subtests: pytest.Subtests) -> None:
    for config, device, method, reason in (
        ({}, "cpu", None, None),
        (_config(quant_method="torchao"), "cpu", "torchao", None),
        (_config(quant_method="torchao"), "cuda", "torchao", "other kernels on cuda"),
        (_config(quant_method="gptq"), "cpu", "gptq", "no test"),
        (_config(load_in_4bit=True), "cpu", "bitsandbytes", "no test"),
        ({"text_config": _config(quant_method="fp8")}, "cpu", "fp8", None),
        (
            _config(quant_method="compressed-tensors", config_groups={"g": {"input_activations": {"n": 8}}}),
            "cpu",
            "compressed-tensors",
            "activations are quantised",
        ),
    ):
        with subtests.test(str(config)):
            assert quantization.method_of(config) == method
            said = quantization.unverified(config, device)
            assert (said is None) if reason is None else (said is not None and reason in said)
