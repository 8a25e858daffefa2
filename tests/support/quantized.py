"""Quantised checkpoints of a small model, made by the packages that read them."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
)
from transformers import AutoModelForCausalLM, Qwen3Config, TorchAoConfig

from tests.support.adapters import VOCABULARY
from tests.support.architectures import COMMON
from tests.support.checkpoints import save_random

_BLOCK = 32
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def dense(folder: Path) -> Path:
    """The model before it is quantised."""
    sizes = {"vocab_size": VOCABULARY, "head_dim": 16, "hidden_size": 64, "intermediate_size": 128}
    save_random(Qwen3Config(**{**COMMON, **sizes, "num_hidden_layers": 2}), folder)
    return folder


def _loaded(folder: Path, **options: Any) -> Any:
    automatic: Any = AutoModelForCausalLM
    return automatic.from_pretrained(folder, **options)


def _torchao(config: Any) -> Callable[[Path, Path], None]:
    def write(base: Path, folder: Path) -> None:
        _loaded(base, quantization_config=TorchAoConfig(config)).save_pretrained(folder)

    return write


def _compressed(scheme: str) -> Callable[[Path, Path], None]:
    """A scheme of compressed-tensors, with scales that fit the weights, as llm-compressor writes it."""

    def write(base: Path, folder: Path) -> None:
        from compressed_tensors.compressors import ModelCompressor
        from compressed_tensors.quantization import (
            QuantizationConfig,
            apply_quantization_config,
            preset_name_to_scheme,
        )
        from compressed_tensors.quantization.utils import calculate_qparams

        model = _loaded(base)
        chosen: Any = preset_name_to_scheme(scheme, targets=["Linear"])
        if chosen.weights.group_size:
            chosen.weights.group_size = _BLOCK
        apply_quantization_config(model, QuantizationConfig(config_groups={"g": chosen}, ignore=["lm_head"]))
        for module in model.modules():
            if (own := getattr(module, "quantization_scheme", None)) is None:
                continue
            weight, group = module.weight.data, own.weights.group_size or module.weight.shape[1]
            grouped = weight.reshape(weight.shape[0], -1, group)
            scale, _ = calculate_qparams(grouped.amin(-1), grouped.amax(-1), own.weights)
            module.weight_scale.data = scale.reshape(module.weight_scale.shape)
        compressor: Any = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        model.save_pretrained(folder)
        compressor.update_config(folder)

    return write


def _fine_grained_fp8(scale_dtype: torch.dtype) -> Callable[[Path, Path], None]:
    """DeepSeek's form: blocks of a weight with a scale each. transformers makes it on a GPU alone."""

    def write(base: Path, folder: Path) -> None:
        tensors: dict[str, torch.Tensor] = {}
        for name, weight in load_file(base / "model.safetensors").items():
            tensors[name] = weight
            if weight.ndim == 2 and ".layers." in name:
                rows, columns = weight.shape
                blocks = weight.reshape(rows // _BLOCK, _BLOCK, columns // _BLOCK, _BLOCK)
                scale = (blocks.abs().amax((1, 3)) / 448).to(scale_dtype)
                parts = blocks / scale.float()[:, None, :, None]
                tensors[name] = parts.clamp(-448, 448).to(torch.float8_e4m3fn).reshape(rows, columns)
                tensors[f"{name}_scale_inv"] = scale
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((base / "config.json").read_text())
        config["quantization_config"] = {
            "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [_BLOCK, _BLOCK],
            "modules_to_not_convert": ["lm_head"],
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))

    return write


#: form -> writes a checkpoint of the base into a folder
FORMS: Mapping[str, Callable[[Path, Path], None]] = {
    "torchao int8": _torchao(Int8WeightOnlyConfig()),
    "torchao float8": _torchao(Float8WeightOnlyConfig()),
    "torchao int8 with activations": _torchao(Int8DynamicActivationInt8WeightConfig()),
    "compressed-tensors W4A16": _compressed("W4A16"),
    "compressed-tensors W8A16": _compressed("W8A16"),
    "compressed-tensors W8A8": _compressed("W8A8"),
    "compressed-tensors FP8": _compressed("FP8_DYNAMIC"),
    "fp8": _fine_grained_fp8(torch.float32),
    "fp8 with bfloat16 scales": _fine_grained_fp8(torch.bfloat16),
}


def quantized(form: str, base: Path, folder: Path) -> Path:
    """Write a checkpoint of a form, with its tokenizer."""
    FORMS[form](base, folder)
    for name in _TOKENIZER:
        shutil.copy(base / name, folder / name)
    return folder
