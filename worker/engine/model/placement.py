"""Placement of a model's modules on several devices.

accelerate adds a hook to each module. The hook moves inputs to the module's device, and loads weights kept in
main memory or on disk for the time of the call. nnsight's controllers run these hooks around the module's own
forward, so a location shows the module's real input or output on any device.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from actograph.contract.errors import ModelRefused
from actograph.contract.model_loads import DeviceKey, DeviceMap
from worker.engine.model import memory
from worker.engine.model.devices import as_device, compute_device, kept_on

#: `auto` uses one GPU if the weights fill at most this share; caches and rows need the rest
_ALONE = 0.6


def check_devices(device_map: DeviceMap) -> None:
    """Refuse GPUs that do not exist.

    Raises:
        ModelRefused: with the number of GPUs.
    """
    wanted = set(device_map.values()) if isinstance(device_map, Mapping) else set()
    gpus = {int(device) if isinstance(device, int) else torch.device(device).index or 0
            for device in wanted if device not in ("cpu", "disk")}  # fmt: skip
    if gpus and max(gpus) >= torch.cuda.device_count():
        raise ModelRefused(
            f"device_map names GPU {max(gpus)}; there are {torch.cuda.device_count()} here, counted from 0"
        )


def needs_spreading(
    config: PretrainedConfig, device_map: DeviceMap, dtype: Any, max_memory: Mapping[DeviceKey, int] | None
) -> bool:
    """Whether accelerate must place the modules; False if the first device is enough."""
    if not isinstance(device_map, str):
        return True
    if not torch.cuda.is_available():
        return False
    if device_map != "auto":
        return True
    room = int(memory.available_bytes(torch.device("cuda", 0)) * _ALONE)
    return _weights_bytes(config, dtype) > min(room, (max_memory or {}).get(0, room))


def _weights_bytes(config: PretrainedConfig, dtype: Any) -> int:
    with torch.device("meta"):
        build: Any = AutoModelForCausalLM.from_config
        model = build(config)
    kind = config.dtype if dtype == "auto" else dtype
    size = kind.itemsize if isinstance(kind, torch.dtype) else torch.float32.itemsize
    return sum(int(p.numel()) for p in model.parameters()) * size


def weights_by_device(model: Any) -> dict[Any, int]:
    """Weights by device: GPU number, `cpu` or `disk` -> bytes."""
    kept = kept_on(model)
    found: dict[Any, int] = {}
    for name, parameter in model.named_parameters():
        place: Any = next((kept[path] for path in _above(name) if path in kept), parameter.device)
        if place != "disk":
            device = as_device(place)
            place = "cpu" if device.type == "cpu" else device.index or 0
        found[place] = found.get(place, 0) + parameter.numel() * parameter.element_size()
    return found


def _above(path: str) -> list[str]:
    """The path and the paths of its containing modules, nearest first; the model itself is ""."""
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]


def refuse_what_cannot_work(name: str, model: Any, device_map: DeviceMap) -> None:
    """Refuse placements that would fail or be very slow in the middle of a job.

    Raises:
        ModelRefused: with what to do instead.
    """
    kept = kept_on(model)
    if isinstance(device_map, str) and "disk" in kept.values():
        raise ModelRefused(
            f"{name}: GPUs and main memory together are too small for the weights; take a smaller dtype or "
            "model, or allow more with max_memory"
        )
    if next(model.get_input_embeddings().parameters()).device.type == "meta":
        raise ModelRefused(
            f"{name}: device_map keeps the token embedding away from where it computes; put it "
            "(and a head that shares its weights) on a GPU, or on the CPU where all else is there"
        )
    for path, module in model.named_modules():
        if not isinstance(module, torch.nn.ModuleList):
            continue
        for i in range(len(module)):
            layer = f"{path}.{i}"
            parts = [part for part in kept if part.startswith(f"{layer}.")]
            devices = {compute_device(model, part) for part in parts}
            if len(devices) > 1:
                raise ModelRefused(
                    f"{name}: device_map splits {layer} over {', '.join(sorted(map(str, devices)))}; the "
                    "residual stream inside a layer cannot cross devices, so keep each layer on one"
                )
