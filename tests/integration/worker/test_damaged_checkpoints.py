"""Damaged and missing files of a checkpoint are refused with the name of the file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from actograph.contract.errors import ModelRefused
from worker.engine.model.load import load_model

pytestmark = pytest.mark.integration
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
JSON = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
Refuses = Callable[[Callable[[Path], object], str], None]


@pytest.fixture
def refuses(shared: Path, tmp_path: Path) -> Refuses:
    """Damages a copy of the small model and expects a reason."""

    def check(damage: Callable[[Path], object], says: str) -> None:
        folder = tmp_path / "model"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name in (*JSON, WEIGHTS):
            (folder / name).write_bytes((shared / "models" / "tiny-qwen3" / name).read_bytes())
        damage(folder)
        with pytest.raises(ModelRefused, match=says) as refused:
            load_model(str(folder), name="tiny", device="cpu")
        assert str(folder) in refused.value.message

    return check


def shards(folder: Path, index: object) -> None:
    (folder / WEIGHTS).rename(folder / "model-1.safetensors")
    (folder / INDEX).write_text(json.dumps(index))


def test_files_that_hold_no_json_object(refuses: Refuses, subtests: pytest.Subtests) -> None:
    for name in (*JSON, INDEX):
        for text in ("", '{"model_', "[1]", "\udcff"):
            with subtests.test(f"{name}: {text!r}"):
                data = text.encode(errors="surrogateescape")
                refuses(
                    lambda folder, name=name, data=data: (
                        (folder / WEIGHTS).unlink() if name == INDEX else None,
                        (folder / name).write_bytes(data),
                    ),
                    f"^tiny: {name} is damaged: it is no JSON",
                )


def test_files_that_hold_other_things(refuses: Refuses, subtests: pytest.Subtests) -> None:
    for name, text in (("config.json", "{}"), ("tokenizer.json", "{}"), ("tokenizer.json", '{"model": 1}')):
        with subtests.test(f"{name}: {text}"):
            refuses(
                lambda folder, name=name, text=text: (folder / name).write_text(text),
                f"^tiny: {name} .*cannot be read",
            )


def test_weights(refuses: Refuses, subtests: pytest.Subtests) -> None:
    begin, size = "does not begin as a safetensors file", r"has \d+ bytes, its header says \d+"
    damages: list[tuple[str, Callable[[bytes], bytes]]] = [
        (begin, lambda _: b""),
        (begin, lambda data: data[:40]),
        (begin, lambda data: b"\xff" * 8 + data[8:]),
        (size, lambda data: data[:-1]),
        (size, lambda data: data + b"x"),
    ]
    for number, (says, change) in enumerate(damages):
        with subtests.test(f"{number}: {says}"):
            refuses(
                lambda folder, change=change: (folder / WEIGHTS).write_bytes(
                    change((folder / WEIGHTS).read_bytes())
                ),
                f"^tiny: {WEIGHTS} is damaged: it {says}",
            )
    with subtests.test("a pickle"):
        refuses(
            lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin").write_bytes(b"x"),
            "^tiny: the weights cannot be loaded from .*pytorch_model.bin",
        )
    first = {"model.embed_tokens.weight": "model-1.safetensors"}
    for index, says in {
        json.dumps({"weight_map": first | {"lm_head.weight": "model-2.safetensors"}}): (
            f"{INDEX} names model-2.safetensors, and there is no such file"
        ),
        json.dumps({}): f"{INDEX} is damaged: it has no weight_map",
        json.dumps({"weight_map": [1]}): f"{INDEX} is damaged: it has no weight_map",
    }.items():
        with subtests.test(index):
            refuses(lambda folder, index=index: shards(folder, json.loads(index)), f"^tiny: {says}")


def test_missing_files(refuses: Refuses, subtests: pytest.Subtests) -> None:
    tokenizer = ("tokenizer.json", "tokenizer_config.json")
    for names, says in {
        ("config.json",): "there is no config.json",
        (WEIGHTS,): f"there are no weights, which are one of {WEIGHTS}",
        ("tokenizer.json",): "tokenizer.json or another file of the tokenizer cannot be read",
        tokenizer: "the tokenizer has no vocabulary: .* has none of tokenizer.json, vocab.json",
    }.items():
        with subtests.test(", ".join(names)):
            refuses(
                lambda folder, names=names: [(folder / name).unlink() for name in names], f"^tiny: {says}"
            )
