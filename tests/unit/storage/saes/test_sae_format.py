"""SAELens' configs: what is read of them, and what is refused with the reason."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.contract.errors import InvalidRequest
from actograph.contract.saes import NewSae
from storage.saes import sae_files
from tests.support.saes import ARCHITECTURES, sae_config, sae_tensors, write_sae

NEW = NewSae(name="s", path="sae")


def read(root: Path) -> sae_files.SaeFiles:
    return sae_files.read(NEW, [str(root)])


def test_all_architectures_are_read(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for architecture in ARCHITECTURES:
        with subtests.test(architecture):
            write_sae(tmp_path / "sae", architecture, normalize_activations="layer_norm")
            found = read(tmp_path)
            assert found.config.architecture == architecture
            assert (found.config.d_in, found.config.d_sae) == (8, 24)
            assert found.config.k == (5 if architecture == "topk" else None)
            assert found.config.normalize_activations == "layer_norm"
            assert found.hook == "blocks.1.hook_resid_post"
            assert b"".join(found.pieces()) == found.weights.read_bytes()


def test_files_of_before_version_6_are_read(tmp_path: Path) -> None:
    old = {
        "hook_point": "blocks.3.hook_mlp_out", "hook_point_head_index": None, "d_in": 8, "d_sae": 24,
        "activation_fn_str": "relu", "normalize_activations": False, "dtype": "float32",
    }  # fmt: skip
    write_sae(tmp_path / "sae")
    (tmp_path / "sae" / "cfg.json").write_text(json.dumps(old))
    found = read(tmp_path)
    assert (found.config.architecture, found.hook) == ("standard", "blocks.3.hook_mlp_out")
    topk = old | {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 7}}
    (tmp_path / "sae" / "cfg.json").write_text(json.dumps(topk))
    assert (read(tmp_path).config.architecture, read(tmp_path).config.k) == ("topk", 7)


def test_rows_of_all_heads_are_those_of_z(tmp_path: Path) -> None:
    """SAELens flattens [heads, width]; `z` has the heads side by side already."""
    metadata = {"hook_name": "blocks.1.attn.hook_z"}
    write_sae(tmp_path / "sae", reshape_activations="hook_z", metadata=metadata)
    assert read(tmp_path).hook == "blocks.1.attn.hook_z"


def test_what_is_not_computed_exactly_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"architecture": "matching_pursuit"}, "architecture 'matching_pursuit' is not computed here"),
        ({"architecture": "batchtopk"}, "save it with save_inference_model"),
        ({"architecture": "transcoder"}, "only standard, topk, jumprelu, gated"),
        ({"activation_fn": "tanh-relu"}, "activation_fn 'tanh-relu'"),
        ({"architecture": "topk", "k": 0}, "k of a topk SAE is 0"),
        ({"architecture": "topk", "k": 25}, "k is 25, and there are 24 latents"),
        ({"normalize_activations": "expected_average_only_in"}, "fold it into the weights"),
        ({"normalize_activations": True}, "fold it into the weights"),
        (
            {"normalize_activations": "covariance_whitening"},
            "only none, layer_norm, constant_norm_rescale are",
        ),
        ({"reshape_activations": "hook_z"}, "does not suit the hook"),
        ({"reshape_activations": "other"}, "reshape_activations 'other'"),
        ({"metadata": {"hook_head_index": 3}}, "an SAE of a single head"),
        ({"hook_head_index": 3}, "an SAE of a single head"),
        ({"hook_name_out": "blocks.2.hook_mlp_out"}, "a transcoder is no SAE"),
        ({"model_from_pretrained_kwargs": {"fold_value_biases": True}}, "TransformerLens had changed"),
        (
            {"model_from_pretrained_kwargs": {"center_writing_weights": True}},
            "with center_rows: true",
        ),
        ({"metadata": {"hook_name": 3}}, "hook_name is not a text"),
        ({"d_in": "8"}, "d_in is '8'"),
        ({"d_sae": 25}, r"W_enc is F32 \[8, 24\]; by cfg.json it is floats \[8, 25\]"),
    ]
    for changes, reason in cases:
        with subtests.test(changes=changes):
            write_sae(tmp_path / "sae")
            (tmp_path / "sae" / "cfg.json").write_text(json.dumps(sae_config() | changes))
            with pytest.raises(InvalidRequest, match=reason) as caught:
                read(tmp_path)
            assert caught.value.param == "path"


def test_files_that_are_none_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    folder = tmp_path / "sae"
    tensors = sae_tensors()
    cases: list[tuple[str, bytes | dict[str, Any], str]] = [
        ("cfg.json", b"{", "is not valid JSON"),
        ("cfg.json", b"[]", "is not a JSON object"),
        ("cfg.json", b" " * (1 << 21), "larger than"),
        ("sae_weights.safetensors", b"\x80\x04pickle, for example", "claims a header"),
        ("tensors", {name: tensors[name] for name in ("W_enc", "W_dec", "b_dec")}, "it has no b_enc"),
        (
            "tensors",
            tensors | {"scaling_factor": np.ones(24, np.float32)},
            "unexpected tensors scaling",
        ),
        ("tensors", tensors | {"b_dec": np.ones(8, np.int32)}, "b_dec is I32"),
    ]
    for name, content, reason in cases:
        with subtests.test(reason):
            write_sae(folder, tensors=content if isinstance(content, dict) else None)
            if isinstance(content, bytes):
                (folder / name).write_bytes(content)
            with pytest.raises(InvalidRequest, match=reason):
                read(tmp_path)
    (folder / "sae_weights.safetensors").unlink()
    with pytest.raises(InvalidRequest, match="no such file under the server's data roots"):
        read(tmp_path)


def test_an_sae_of_the_hub_is_read_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "hub" / "models--actograph--saes"
    write_sae(cache / "snapshots" / ("a" * 40) / "layer-1", "jumprelu")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    new = NewSae(name="s", hub="actograph/saes", folder="layer-1")
    found = sae_files.read(new, [])
    assert found.config.architecture == "jumprelu"
    assert new.source == "hub:actograph/saes/layer-1"
    with pytest.raises(InvalidRequest, match=r"saes/layer-2/cfg.json cannot be downloaded") as caught:
        sae_files.read(new.model_copy(update={"folder": "layer-2"}), [])
    assert caught.value.param == "hub"


def test_what_the_files_leave_out_is_as_saelens_registry_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    asked = {"model_from_pretrained_kwargs": {"center_writing_weights": True}}
    for hub, given, changes, due in [
        ("jbloom/GPT2-Small-SAEs-Reformatted", None, {}, (True, "none")),
        ("jbloom/GPT2-Small-SAEs-Reformatted", False, {}, (False, "none")),
        ("JoshEngels/Mistral-7B-Residual-Stream-SAEs", None, {}, (False, "constant_norm_rescale")),
        ("owner/saes", None, {}, (False, "none")),
        ("owner/asked", True, asked, (True, "none")),
        ("owner/asked", False, asked, (False, "none")),
    ]:
        with subtests.test(hub=hub, given=given):
            cache = tmp_path / f"models--{hub.replace('/', '--')}"
            write_sae(cache / "snapshots" / ("a" * 40), **changes)
            (cache / "refs").mkdir(exist_ok=True)
            (cache / "refs" / "main").write_text("a" * 40)
            found = sae_files.read(NewSae(name="s", hub=hub, center_rows=given), []).config
            assert (found.center_rows, found.normalize_activations) == due
