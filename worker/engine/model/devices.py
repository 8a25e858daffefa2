"""Devices: choosing one for a model, and finding those that accelerate uses for its modules."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from actograph.contract.errors import ModelRefused
from actograph.contract.model_loads import Device


def resolve_device(device: str) -> torch.device:
    """Resolve a device name; `auto` is the first GPU, or the CPU without one.

    Raises:
        ModelRefused: this machine has no such device.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ModelRefused(f"device {device!r} is unknown; use auto, cpu, cuda or cuda:<n>") from error
    if found.type == "cuda":
        if not torch.cuda.is_available():
            raise ModelRefused(f"device {device} was asked for, but torch sees no GPU; use cpu or auto")
        if found.index is not None and found.index >= torch.cuda.device_count():
            raise ModelRefused(f"device {device}: there are {torch.cuda.device_count()} GPUs, counted from 0")
    return found


def load_devices(device: str, *, is_spread: bool, ranks: int) -> tuple[torch.device, ...]:
    """Devices that a load may fill in this process.

    Args:
        device: as for `resolve_device`.
        is_spread: whether accelerate places the modules on several devices.
        ranks: processes that share the model; the first of them has the first GPU.

    Raises:
        ModelRefused: this machine has no such device.
    """
    if is_spread and torch.cuda.is_available():
        return tuple(torch.device("cuda", number) for number in range(torch.cuda.device_count()))
    if ranks > 1 and torch.cuda.is_available():
        return (torch.device("cuda", torch.cuda.current_device()),)
    return (resolve_device(device),)


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one, to which pinned memory and new streams belong; a CPU needs nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def kept_on(model: Any) -> Mapping[str, Device]:
    """Module path -> device on which accelerate keeps it; empty for a model on one device."""
    return getattr(model, "hf_device_map", None) or {}


def compute_device(model: Any, path: str) -> torch.device:
    """Device on which the module at `path` computes; its weights may be kept elsewhere."""
    module = model.get_submodule(path)
    for part in (module, *module.modules()):
        hook = part.__dict__.get("_hf_hook")
        for one in getattr(hook, "hooks", (hook,)):  # accelerate's sequence of several
            device = getattr(one, "execution_device", None)
            if device is not None:
                return as_device(device)
    found: torch.device = next((p.device for p in module.parameters()), torch.device("cpu"))
    return found


def as_device(device: Any) -> torch.device:
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
