"""Refuse a checkpoint whose config contradicts its weights, before loading either.

Otherwise transformers fills missing weights with random numbers, and builds as many layers as the config
names until the kernel ends the process.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM

from actograph.contract.errors import ModelRefused
from worker.engine.model import weight_files

#: numbers of layers, each of which has a weight, and sizes, which multiply the size of some weight
_COUNTS = ("num_hidden_layers", "n_layer", "num_layers")
_SIZES = ("hidden_size", "n_embd", "intermediate_size", "vocab_size", "head_dim", "num_attention_heads")
_DECODER_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_CURE = "Take config.json and weights of the same checkpoint"
_MOST_NAMES = 3


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
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        tensors += len(header.keys() - {"__metadata__"})
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
        ModelRefused: with the first differences.
    """
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
            if (layer := _DECODER_LAYER.search(key)) is not None and int(layer[1]) >= layers
        ),
    }
    problems = [f"{len(keys)} weights {how} ({_some(keys)})" for how, keys in wrong.items() if keys]
    if problems:
        raise ModelRefused(f"{name}: config.json does not fit the weights: {'; '.join(problems)}. {_CURE}")


def _safetensors(files: Iterable[Path]) -> list[Path]:
    return [path for path in files if path.suffix == ".safetensors"]


def _some(keys: list[str]) -> str:
    rest = len(keys) - _MOST_NAMES
    return ", ".join(keys[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")
