"""Quantised checkpoints: what their config says, which package reads them, and which ones are verified."""

import importlib.util
from collections.abc import Mapping
from typing import Any

#: method -> module and what to install for it, of those that transformers cannot read alone
PACKAGES: Mapping[str, tuple[str, str]] = {
    "compressed-tensors": ("compressed_tensors", "'actograph[quantized]'"),
    "torchao": ("torchao", "'actograph[quantized]'"),
    "gptq": ("gptqmodel", "gptqmodel optimum"),
    "awq": ("gptqmodel", "gptqmodel"),
    "bitsandbytes": ("bitsandbytes", "bitsandbytes"),
    "hqq": ("hqq", "hqq"),
    "quanto": ("optimum", "optimum-quanto"),
    "auto-round": ("auto_round", "auto-round"),
    "aqlm": ("aqlm", "aqlm"),
    "eetq": ("eetq", "eetq"),
    "fbgemm_fp8": ("fbgemm_gpu", "fbgemm-gpu"),
    "quark": ("quark", "amd-quark"),
    "spqr": ("spqr_quant", "spqr_quant"),
    "vptq": ("vptq", "vptq"),
}
#: methods whose models compute on a CPU what transformers computes: the suite of tests has them
VERIFIED_ON_CPU = frozenset({"compressed-tensors", "fp8", "torchao"})


def method_of(config: Mapping[str, Any]) -> str | None:
    """The method of a checkpoint, by the content of its config.json; None if it is not quantised."""
    found = config.get("quantization_config")
    if not isinstance(found, Mapping):
        text = config.get("text_config")
        return method_of(text) if isinstance(text, Mapping) and text is not config else None
    method = found.get("quant_method")
    if method is None and (found.get("load_in_4bit") or found.get("load_in_8bit")):
        return "bitsandbytes"
    return str(method or "unknown")


def rounds_activations(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's layers round their input too: then a row depends on how its pass was cut."""
    found = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")
    if not isinstance(found, Mapping):
        return False
    groups = found.get("config_groups")
    if isinstance(groups, Mapping):
        return any(isinstance(one, Mapping) and one.get("input_activations") for one in groups.values())
    return found.get("quant_method") == "torchao" and "Activation" in str(found.get("quant_type"))


def unverified(config: Mapping[str, Any], device: str) -> str | None:
    """The reason why results with a checkpoint are unverified; None if they are, or it is not quantised."""
    method = method_of(config)
    if method is None:
        return None
    if method not in VERIFIED_ON_CPU:
        return f"no test of Actograph runs {method}"
    if device != "cpu":
        return f"{method} runs other kernels on {device} than on a CPU, where it is tested"
    if rounds_activations(config):
        return "activations are quantised too, so their rounding differs from pass to pass"
    return None


def missing_package(method: str) -> str | None:
    """Packages to install for checkpoints of this method; None if it is there, or nothing is needed."""
    module, install = PACKAGES.get(method, ("", ""))
    return install if module and importlib.util.find_spec(module) is None else None
