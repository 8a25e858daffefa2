"""Models whose weights are kept in several places read, steer and generate as those in one place."""

import gc
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module

from actograph.contract.errors import ModelRefused
from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import KeepingSink, generate, read_texts
from worker.engine.engine import Engine
from worker.engine.messages import Edit, Request
from worker.engine.model import devices, placement
from worker.engine.model.load import load_model
from worker.engine.model.loaded import LoadedModel

pytestmark = pytest.mark.integration

PROMPTS = ((5, 9, 21, 33, 8), (40, 3), (7,) * 12)
#: module -> where its weights are kept; on the disk they are fetched for each call
MAPS: dict[str, dict[str, int | str]] = {
    "layers": {
        "model.embed_tokens": "cpu",
        "model.layers.0": "cpu",
        "model.layers.1": "disk",
        "model.norm": "cpu",
        "model.rotary_emb": "cpu",
        "lm_head": "cpu",
    },
    "parts of a layer": {
        "model.layers.0.self_attn": "disk",
        "model.embed_tokens": "cpu",
        "model.layers.0.mlp": "cpu",
        "model.layers.0.input_layernorm": "cpu",
        "model.layers.0.post_attention_layernorm": "disk",
        "model.layers.1": "cpu",
        "model.norm": "disk",
        "model.rotary_emb": "cpu",
        "lm_head": "cpu",
    },
}


@pytest.fixture(scope="module", params=list(MAPS))
def spread(request: pytest.FixtureRequest, shared: Path) -> Engine:
    source = str(shared / "models" / "tiny-qwen3")
    return Engine(load_model(source, dtype="float32", device_map=MAPS[request.param]))


@pytest.fixture(scope="module")
def plain(shared: Path) -> Engine:
    return Engine(load_model(str(shared / "models" / "tiny-qwen3"), dtype="float32", device="cpu"))


def requests(width: int = 0) -> list[Request]:
    edits: tuple[Edit, ...] = ()
    if width:
        vector = torch.linspace(-1.0, 1.0, width).numpy()
        edits = (
            Edit(hook="resid_post.0", op="add", vector=vector, coefficient=2.0),
            Edit(hook="attn_out.1", op="project_out", vector=vector, positions="generated"),
        )
    return [
        Request(key=str(i), prompt_ids=ids, seed=i, edits=edits if i != 1 else ())
        for i, ids in enumerate(PROMPTS)
    ]


def test_the_same_points_are_found_and_proved(plain: Engine, spread: Engine) -> None:
    known = {"devices"}
    assert spread.structure.model_dump(exclude=known) == plain.structure.model_dump(exclude=known)
    assert spread.structure.devices == plain.structure.devices == ["cpu", "cpu"]
    assert spread.model.device == torch.device("cpu")


@pytest.mark.parametrize("steered", [False, True])
def test_tokens_and_rows_are_the_same(plain: Engine, spread: Engine, steered: bool) -> None:
    hooks = list(plain.structure.hooks)
    sampling = SamplingSpec(max_tokens=9, temperature=0.8)
    asked = requests(plain.structure.hidden_size if steered else 0)
    for run in (partial(generate, sampling=sampling), read_texts):
        sinks = [KeepingSink(), KeepingSink()]
        made = [run(plain, asked, hooks=hooks, sink=sinks[0]), run(spread, asked, hooks=hooks, sink=sinks[1])]
        for i, (one, other) in enumerate(zip(*made, strict=True)):
            assert one.error is None and other.error is None
            assert one.generated_ids == other.generated_ids
            for hook in hooks:
                assert torch.equal(sinks[0].rows(i, hook), sinks[1].rows(i, hook)), hook


def test_what_was_offloaded_is_removed_with_the_model(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(shared / "models" / "tiny-qwen3")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = load_model(source, dtype="float32", device_map=MAPS["layers"])
    (folder,) = tmp_path.iterdir()
    hf: Any = model.hf
    assert hf.hf_device_map["model.layers.1"] == "disk"
    del model, hf
    gc.collect()
    assert not folder.exists()
    with pytest.raises(ModelRefused, match="the weights cannot be loaded"):
        load_model(source, device_map={"model.layers.1": "disk"})
    assert not list(tmp_path.iterdir())


def test_an_embedding_kept_elsewhere_is_refused(shared: Path) -> None:
    source = str(shared / "models" / "tiny-qwen3")
    with pytest.raises(ModelRefused, match="keeps the token embedding away"):
        load_model(source, device_map=MAPS["layers"] | {"model.embed_tokens": "disk", "lm_head": "disk"})


def test_a_strategy_without_a_gpu_is_the_cpu(shared: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    model = load_model(str(shared / "models" / "tiny-qwen3"), device_map="balanced")
    assert model.device.type == "cpu" and not devices.kept_on(model.hf)


def test_a_layer_on_two_devices_is_refused(shared: Path) -> None:
    model: LoadedModel = load_model(str(shared / "models" / "tiny-qwen3"), device="cpu")
    hf: Any = model.hf
    add_hook_to_module(hf.model.layers[1].mlp, AlignDevicesHook(execution_device="meta"))
    hf.hf_device_map = {"model.layers.0": "cpu", "model.layers.1.self_attn": "cpu", "model.layers.1.mlp": 0}
    with pytest.raises(ModelRefused, match=r"splits model\.layers\.1 over cpu, meta"):
        placement.refuse_what_cannot_work("tiny", hf, hf.hf_device_map)
