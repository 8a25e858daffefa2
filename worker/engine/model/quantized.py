"""Quantised checkpoints, as transformers and the package of their method load them."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from actograph.contract import quantization
from actograph.contract.errors import ModelRefused

logger = logging.getLogger(__name__)

_MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the weights of a checkpoint are quantised.

    Attributes:
        unverified: why no test compares such models with transformers' own; None if one does.
    """

    method: str
    unverified: str | None


def quantization_of(config: PretrainedConfig, target: torch.device) -> Quantization | None:
    """The quantisation that a config names; None if there is none."""
    content = config.to_dict()
    method = quantization.method_of(content)
    return None if method is None else Quantization(method, quantization.unverified(content, target.type))


def load(
    name: str, source: str, found: Quantization, target: torch.device, options: Mapping[str, Any]
) -> PreTrainedModel:
    """Load a quantised checkpoint on one device.

    Raises:
        ModelRefused: its package is missing, or tensors of the checkpoint are; with the reason.
    """
    method = found.method
    if (missing := quantization.missing_package(method)) is not None:
        raise ModelRefused(
            f"{name}: its weights are quantised by {method}, and the package that reads them is not "
            f"installed: pip install {missing}"
        )
    if method not in AUTO_QUANTIZATION_CONFIG_MAPPING and method != "bitsandbytes":
        raise ModelRefused(
            f"{name}: its weights are quantised by {method}, which this version of transformers cannot read; "
            "serve a checkpoint that is not quantised"
        )
    own: Any = AutoModelForCausalLM
    placed = {} if target.type == "cpu" else {"device_map": {"": str(target)}}
    try:
        hf, info = own.from_pretrained(
            source, trust_remote_code=False, output_loading_info=True, **placed, **options
        )
    except torch.OutOfMemoryError:
        raise
    except (ImportError, AssertionError, RuntimeError, ValueError) as error:
        raise ModelRefused(
            f"{name}: its {method} weights cannot be loaded on {target} ({_said(error)}); serve it on "
            "another device, or a checkpoint that is not quantised"
        ) from error
    wrong = sorted({*map(str, info["missing_keys"]), *(str(key[0]) for key in info["mismatched_keys"])})
    if wrong:
        rest = f" and {len(wrong) - _MOST_NAMES} more" if len(wrong) > _MOST_NAMES else ""
        raise ModelRefused(
            f"{name}: {len(wrong)} weights of the {method} checkpoint are missing or have another shape "
            f"({', '.join(wrong[:_MOST_NAMES])}{rest}). Take config.json and weights of the same checkpoint"
        )
    hf.eval()
    if method == "fp8" and target.type == "cpu":  # unpacked already, in the dtype of their scales
        _cast(hf, hf.config.dtype)
    try:
        with torch.no_grad():  # some methods unpack their weights in the first pass
            hf(input_ids=torch.ones(1, 1, dtype=torch.long, device=target), use_cache=False)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ImportError, AttributeError, TypeError) as error:
        raise ModelRefused(
            f"{name}: its {method} weights cannot be run on {target} ({_said(error)}); serve it on another "
            "device, or a checkpoint that is not quantised"
        ) from error
    reason = found.unverified
    if reason is None:
        logger.info("%s: quantised by %s", name, method)
    else:
        logger.warning("%s: quantised by %s, unverified: %s", name, method, reason)
    model: PreTrainedModel = hf
    return model


def _cast(hf: Any, dtype: torch.dtype) -> None:
    """Turn dense parameters to one dtype, but those that the model keeps in float32."""
    kept = {*(hf._keep_in_fp32_modules or ()), *(hf._keep_in_fp32_modules_strict or ())}
    for path, parameter in hf.named_parameters():
        if parameter.is_floating_point() and not any(one in path for one in kept):
            parameter.data = parameter.data.to(dtype)


def weights_bytes(hf: PreTrainedModel) -> int:
    """Bytes of all parameters, of packed ones as they are kept."""
    module: Any = hf
    return sum(map(_bytes_of, module.parameters()))


def _bytes_of(tensor: Any) -> int:
    if not hasattr(tensor, "__tensor_flatten__"):
        return int(tensor.nbytes)
    names, _ = tensor.__tensor_flatten__()
    return sum(_bytes_of(getattr(tensor, name)) for name in names)


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
