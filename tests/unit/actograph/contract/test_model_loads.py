"""What may be said of how a model is loaded."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from actograph.contract.errors import InvalidRequest, UnknownHook
from actograph.contract.hooks import expand
from actograph.contract.model_loads import ModelLoadOptions, ModelLoadRequest, resolve_savepoints
from actograph.contract.models import HookInfo, ModelStructure, adapter_of_base, parse_served
from tests.support.structures import model_structure


def structure(**changes: Any) -> ModelStructure:
    hooks = {
        f"resid_post.{i}": HookInfo(location=f"model.layers.{i}.output", width=8, dtype="float32")
        for i in range(2)
    }
    modules = ["model.layers.0.output", "model.layers.1.mlp.up_proj.output", "model.layers.1.output"]
    return model_structure(hooks, **{"num_layers": 2, "module_locations": modules} | changes)


def options(**values: Any) -> ModelLoadOptions:
    return ModelLoadOptions.model_validate(values)


def test_json_keys_of_max_memory_are_gpus_and_sizes_are_bytes() -> None:
    found = options(max_memory={"0": "10GiB", "1": 500, "cpu": "1.5 GB"}).max_memory
    assert found == {0: 10 << 30, 1: 500, "cpu": 1_500_000_000}
    again = ModelLoadOptions.model_validate_json(options(max_memory={"0": "1GiB"}).model_dump_json())
    assert again.max_memory == {0: 1 << 30}


def test_a_device_map_names_a_device_for_each_module() -> None:
    given = {"model.layers.0": 0, "model.layers.1": "1", "lm_head": "cuda:1", "model.norm": "disk"}
    found = options(device_map=given)
    assert found.device_map == given | {"model.layers.1": 1, "lm_head": 1}
    assert found.is_spread
    assert ModelLoadOptions.model_validate_json(found.model_dump_json()) == found


def test_what_cannot_be_meant_is_refused(subtests: pytest.Subtests) -> None:
    for wrong in [
        {"device_map": {"model.layers.0": 0, "model.layers.1": "tpu"}},
        {"device_map": {"model.layers.0": True}},
        {"device_map": {"model.layers[0]": 0}},
        {"device_map": {"../x": "disk", "lm_head": "cpu"}},
        {"device_map": {}},
        {"device_map": "fast"},
        {"device_map": "disk"},
        {"device_map": True},
        {"max_memory": {"gpu": 1}},
        {"max_memory": {"-1": 1}},
        {"max_memory": {"0": "lots"}},
        {"max_memory": {"0": 0}},
        {"dtype": "int8"},
        {"attn_implementation": "paged"},
        {"revision": "a\0b"},
        {"savepoints": [{"name": "resid_post.1", "selector": "embed"}]},
        {"savepoints": [{"name": "layers_output[1]", "selector": "embed"}]},
        {"savepoints": [{"name": "model.norm.output", "selector": "embed"}]},
        {"savepoints": [{"name": "a", "selector": "__import__('os')"}]},
        {"savepoints": [{"name": "a", "selector": "x"}, {"name": "a", "selector": "y"}]},
        {"trust_remote_code": True},
    ]:
        with subtests.test(wrong=wrong), pytest.raises(ValidationError):
            ModelLoadRequest.model_validate({"model_id": "demo"} | wrong)


def test_savepoints_are_names_for_hooks_of_this_model() -> None:
    given = options(
        savepoints=[
            {"name": "late", "selector": "model.layers[1].output"},
            {"name": "up", "selector": "model.layers.1.mlp.up_proj.output"},
        ]
    )
    found = resolve_savepoints(given, structure())
    assert found == {"late": "resid_post.1", "up": "model.layers.1.mlp.up_proj.output"}
    table = structure(savepoints=found)
    assert expand([], None, ["late", "resid_post.0", "resid_post.1"], table) == [
        "resid_post.0",
        "resid_post.1",
    ]
    with pytest.raises(UnknownHook, match="late: no such hook point"):
        expand([], None, ["late"], structure())


def test_a_selector_that_the_model_lacks_is_named() -> None:
    given = options(
        savepoints=[{"name": "a", "selector": "resid_post.0"}, {"name": "b", "selector": "resid_post.7"}]
    )
    with pytest.raises(UnknownHook, match=r"savepoint b: .* layers 0 to 1") as caught:
        resolve_savepoints(given, structure())
    assert caught.value.param == "savepoints.1.selector"
    # one savepoint does not stand on another
    chained = options(savepoints=[{"name": "a", "selector": "resid_post.0"}, {"name": "b", "selector": "a"}])
    with pytest.raises(UnknownHook):
        resolve_savepoints(chained, structure(savepoints={"a": "resid_post.0"}))


def test_a_model_is_served_under_its_name_its_source_and_its_folder(tmp_path: Path) -> None:
    assert parse_served("Qwen/Qwen3-0.6B").aliases == {"Qwen/Qwen3-0.6B"}
    folder = tmp_path / "tiny"
    folder.mkdir()
    assert parse_served(f"{folder}/").aliases == {f"{folder}/", "tiny"}
    named = parse_served(f"demo={folder}")
    assert (named.name, named.source, named.aliases) == ("demo", str(folder), {"demo", str(folder), "tiny"})


def test_a_base_with_an_adapter_is_a_model_of_its_own(
    tmp_path: Path, subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "a+b", "lr=1"):
        (tmp_path / name).mkdir()
    for text, name, source, adapter in (
        ("org/base+org/sad", "org/base+org/sad", "org/base", "org/sad"),
        ("sad=org/base+./runs/lr=1", "sad", "org/base", "./runs/lr=1"),
        ("a+b", "a+b", "a+b", None),  # an existing folder
        (adapter_of_base("org/base", "org/sad"), "org/base+org/sad", "org/base", "org/sad"),
        (adapter_of_base("demo=org/base", "sad=./lr=1"), "sad", "org/base", "./lr=1"),
        (adapter_of_base("demo=org/base", "org/sad"), "demo+org/sad", "org/base", "org/sad"),
    ):
        with subtests.test(text):
            served = parse_served(text)
            assert (served.name, served.source, served.adapter) == (name, source, adapter)
    assert parse_served("sad=tiny+org/s").aliases == {
        "sad", "tiny+org/s", "tiny+sad",
    }  # fmt: skip
    for base, text, reason in (
        ("org/base", "lr=1", "needs a name: NAME=lr=1"),
        ("org/base+org/sad", "org/glad", "has an adapter already"),
    ):
        with subtests.test(reason), pytest.raises(InvalidRequest, match=reason):
            adapter_of_base(base, text)
    for text in ("org/base+", "+org/sad"):
        with subtests.test(text), pytest.raises(InvalidRequest, match=r"BASE\+ADAPTER"):
            parse_served(text)


def test_a_request_names_a_base_and_an_adapter_in_one_of_two_forms(subtests: pytest.Subtests) -> None:
    for sent in ("b+a", {"base": "b", "adapter": "a"}):
        assert ModelLoadRequest.model_validate({"model_id": sent}).model_id == "b+a"
    for wrong in ({"base": "b"}, {"base": "b", "adapter": 3}, {"base": "b", "adapter": "a", "x": 1}, {}, []):
        with subtests.test(str(wrong)), pytest.raises(ValidationError):
            ModelLoadRequest.model_validate({"model_id": wrong})
