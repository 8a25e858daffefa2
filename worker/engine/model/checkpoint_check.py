"""Refuse a checkpoint whose config contradicts its weights, before loading either.

Otherwise transformers fills missing weights with random numbers, and builds as many layers as the config
names until the kernel ends the process.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from actograph.contract.errors import ModelRefused
from worker.engine.model import weight_files

#: numbers of layers, each of which has a weight, and sizes, which multiply the size of some weight
_COUNTS = ("num_hidden_layers", "n_layer", "num_layers")
_SIZES = ("hidden_size", "n_embd", "intermediate_size", "vocab_size", "head_dim", "num_attention_heads")
_CURE = "Take config.json and weights of the same checkpoint"
_MOST_NAMES = 3
#: limit of the safetensors format
_MOST_HEADER_BYTES = 100_000_000


def check_files(name: str, source: str, revision: str | None) -> None:
    """Refuse damaged and missing files. A model that is not downloaded yet passes.

    transformers ignores some of them in silence, or says what is wrong without the name of the file.

    Raises:
        ModelRefused: with the name of the file.
    """

    def refuse(problem: str) -> NoReturn:
        raise ModelRefused(f"{name}: {problem}. Copy the checkpoint to {source} again")

    for path in weight_files.json_files(source, revision):
        try:
            content = json.loads(path.read_bytes())
        except ValueError as error:
            refuse(f"{path.name} is damaged: it is no JSON ({error})")
        if not isinstance(content, dict):
            refuse(f"{path.name} is damaged: it is no JSON object")
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        refuse("there is no config.json")
    weights = weight_files.first(source, revision)
    if weights is None:
        return
    if weights.name.endswith(".index.json"):
        try:
            names = weight_files.shard_names(weights)
        except (KeyError, AttributeError, TypeError):
            refuse(f"{weights.name} is damaged: it has no weight_map of names and files")
        for missing in [one for one in names if not (weights.parent / one).is_file()]:
            if Path(source).is_dir():
                refuse(f"{weights.name} names {missing}, and there is no such file")
    for path in _safetensors(weight_files.find(source, revision)):
        try:
            header, start = _header(path)
            end = start + max((one["data_offsets"][1] for one in header.values()), default=0)
        except (ValueError, KeyError, AttributeError, TypeError):
            refuse(f"{path.name} is damaged: it does not begin as a safetensors file")
        if path.stat().st_size != end:
            refuse(f"{path.name} is damaged: it has {path.stat().st_size} bytes, its header says {end}")


def check_tokenizer(name: str, source: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse the empty tokenizer that transformers makes for a folder without tokenizer files.

    Raises:
        ModelRefused: with the names of the files.
    """
    names = list(dict.fromkeys(["tokenizer.json", *type(tokenizer).vocab_files_names.values()]))
    if len(tokenizer.get_vocab()) <= len(tokenizer.get_added_vocab()) and Path(source).is_dir():
        raise ModelRefused(
            f"{name}: the tokenizer has no vocabulary: {source!r} has none of {', '.join(names)}. "
            "Copy the tokenizer's files into the folder"
        )


def check_numbers(name: str, source: str, revision: str | None) -> None:
    """Refuse numbers in the config that no model with these weights can have.

    A model that is not downloaded yet passes.

    Raises:
        ModelRefused: with the number.
    """
    found = weight_files.find(source, revision)
    files = _safetensors(found)
    if not files:
        return
    config = json.loads(next(path for path in found if path.name == "config.json").read_text())
    tensors, size = 0, 0
    for path in files:
        tensors += len(_header(path)[0])
        size += path.stat().st_size
    most = dict.fromkeys(_COUNTS, tensors) | dict.fromkeys(_SIZES, size)
    for part in (config, config.get("text_config") or {}):
        for field, value in part.items():
            if field in most and isinstance(value, int) and value > most[field]:
                raise ModelRefused(
                    f"{name}: config.json does not fit the weights: {field} is {value}, and the weights are "
                    f"{tensors} tensors of {size} bytes together. {_CURE}"
                )


def check_weights(name: str, source: str, config: Any, revision: str | None) -> None:
    """Compare the names and shapes of all weights with the model that the config describes.

    Only the headers of the files are read. Quantized checkpoints pass, since the quantizer changes names and
    shapes, and so do models that are not downloaded yet.

    Raises:
        ModelRefused: with the first differences, or as there are no weights.
    """
    if Path(source).is_dir() and weight_files.first(source, revision) is None:
        raise ModelRefused(
            f"{name}: there are no weights, which are one of {', '.join(weight_files.WEIGHTS)}. "
            f"Copy the checkpoint to {source} again"
        )
    files = _safetensors(weight_files.find(source, revision))
    if not files or getattr(config, "quantization_config", None) is not None:
        return
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source,
        config=config,
        revision=revision,
        trust_remote_code=False,
        device_map="meta",  # no memory, no bytes
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    found = loaded[1]
    layers = int(config.get_text_config().num_hidden_layers)
    wrong = {
        "have another shape": [
            f"{key} is {list(stored)}, the config makes it {list(made)}"
            for key, stored, made in sorted(found["mismatched_keys"])
        ],
        "are missing": sorted(found["missing_keys"]),
        "belong to layers that the config does not have": sorted(
            key
            for key in found["unexpected_keys"]
            if (layer := weight_files.DECODER_LAYER.search(key)) is not None and int(layer[1]) >= layers
        ),
    }
    problems = [f"{len(keys)} weights {how} ({_some(keys)})" for how, keys in wrong.items() if keys]
    if problems:
        raise ModelRefused(f"{name}: config.json does not fit the weights: {'; '.join(problems)}. {_CURE}")


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Tensors in a safetensors file by name, and the offset of their data."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > min(path.stat().st_size, _MOST_HEADER_BYTES):
            raise ValueError("no file has such a header")
        header: dict[str, Any] = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return header, 8 + size


def _safetensors(files: Iterable[Path]) -> list[Path]:
    return [path for path in files if path.suffix == ".safetensors"]


def _some(keys: list[str]) -> str:
    rest = len(keys) - _MOST_NAMES
    return ", ".join(keys[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")
