"""Free memory and memory in use, of host and devices."""

import os
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from evals.plans import run_bytes


def available_bytes(device: torch.device) -> int:
    """Bytes that can be allocated on `device` now.

    GPU: the driver's free memory, and unused memory of torch's allocator.
    CPU: the kernel's MemAvailable, or the rest of the cgroup's limit if that is less.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(_ram_available(), *_cgroup_available())


def _ram_available() -> int:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _cgroup_available() -> list[int]:
    """Bytes left below the memory limits of cgroup v2 and v1; a huge number without limits."""
    left = [1 << 62]
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        most, used = _read(limit).strip(), _read(usage).strip()
        if most.isdigit() and used.isdigit():
            left.append(max(0, int(most) - int(used)))
    return left


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def spread_bytes(layer_devices: Sequence[torch.device], free: Callable[[torch.device], int]) -> int:
    """Bytes of a batch over all devices when the first of them is full.

    A batch uses each device in proportion to the layers there.

    Args:
        layer_devices: where each layer is.
        free: bytes on a device.
    """
    counts = Counter(layer_devices)
    return min(free(device) * len(layer_devices) // count for device, count in counts.items())


def peak_over(devices: Iterable[torch.device], work: Callable[[], object]) -> int:
    """Most bytes that `work` takes of a GPU, of that one of these GPUs where it takes most."""
    gpus = [device for device in devices if device.type == "cuda"]
    before = {device: torch.cuda.memory_allocated(device) for device in gpus}
    for device in gpus:
        torch.cuda.reset_peak_memory_stats(device)
    work()
    return max((torch.cuda.max_memory_allocated(device) - held for device, held in before.items()), default=0)


def memory_snapshot(devices: Iterable[torch.device] = ()) -> dict[str, int]:
    """Bytes in use now and at the peak: of this process, and of its GPUs."""
    rss = _rss()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # the kernel updates the peak late: it may be below the memory in use
    snapshot = {"rss_bytes": rss, "peak_rss_bytes": max(rss, peak)}
    gpus = [device for device in devices if device.type == "cuda"]
    if gpus:
        snapshot["cuda_allocated_bytes"] = sum(map(torch.cuda.memory_allocated, gpus))
        snapshot["cuda_reserved_bytes"] = sum(map(torch.cuda.memory_reserved, gpus))
        snapshot["cuda_peak_bytes"] = sum(map(torch.cuda.max_memory_allocated, gpus))
    for device in gpus if len(gpus) > 1 else ():
        snapshot[f"cuda_{device.index or 0}_allocated_bytes"] = torch.cuda.memory_allocated(device)
        snapshot[f"cuda_{device.index or 0}_peak_bytes"] = torch.cuda.max_memory_allocated(device)
    return snapshot


def capacity(
    layer_devices: Sequence[torch.device], resting: Mapping[str, int], pass_bytes: int | None
) -> dict[str, int]:
    """Memory for a run on devices and host, counted as if no run were going on.

    Args:
        layer_devices: where each layer is.
        resting: snapshot taken just after the model was loaded.
        pass_bytes: measured peak of a pass; None: not measured.

    Returns:
        Free bytes of the host and of the devices, and the bytes that a run divides, see `plans.run_bytes`.
    """
    devices = tuple(dict.fromkeys(layer_devices))
    now = memory_snapshot(devices)

    def beside_the_run(where: torch.device) -> int:
        used = "rss_bytes" if where.type == "cpu" else "cuda_allocated_bytes"
        if where.type == "cuda" and len(devices) > 1:
            used = f"cuda_{where.index or 0}_allocated_bytes"
        return available_bytes(where) + max(0, now.get(used, 0) - resting.get(used, now.get(used, 0)))

    return {
        "host_available_bytes": beside_the_run(torch.device("cpu")),
        "device_available_bytes": spread_bytes(layer_devices, beside_the_run),
        "run_bytes": spread_bytes(
            layer_devices, lambda device: run_bytes(beside_the_run(device), pass_bytes)
        ),
    }


def _rss() -> int:
    fields = _read("/proc/self/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0
