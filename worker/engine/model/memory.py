"""Memory: what is free, what a batch needs, and how many samples fit."""

import os
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from actograph import plans
from actograph.contract.models import ModelStructure
from actograph.contract.specs import CaptureSpec
from actograph.plans import CaptureNeed
from worker.engine.model.kv_cache import kv_bytes_per_token
from worker.engine.model.loaded import LoadedModel

#: tokens of a prompt -> memory for capturing its rows
CaptureOf = Callable[[int], CaptureNeed]


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


class LearnedLimit:
    """Upper bound for later batches, learned from batches that failed and batches that passed.

    Batches are compared by the bytes that the plan computes for them, so one number covers all shapes:
    eight hooks with short prompts also bound sixteen hooks or long prompts.

    A batch as large as the smallest failed one is never chosen again. Below it, the limit is the largest
    batch that passed, or half of the failed one, which ran in its place.
    """

    def __init__(self) -> None:
        self._failed: int | None = None  # smallest need that failed
        self._half = 0  # need of half of that batch
        self._passed = 0  # largest need below it that passed

    def failed(self, need: int, samples: int) -> None:
        """Record that a batch of this need, in bytes, ran out of memory."""
        if self._failed is None or need < self._failed:
            self._failed = need
            self._half = min(need - 1, need // samples * ((samples + 1) // 2))
            if self._passed >= need:
                self._passed = 0

    def passed(self, need: int) -> None:
        """Record that a batch of this need fitted."""
        if self._failed is None or need < self._failed:
            self._passed = max(self._passed, need)

    def most_samples(self, need_of_one: int) -> int | None:
        """Most samples of this need in a batch, at least 1; None if no batch has failed."""
        if self._failed is None:
            return None
        return max(1, max(self._passed, self._half) // max(1, need_of_one))


def plan_batch_size(
    model: LoadedModel,
    structure: ModelStructure,
    capture: CaptureNeed,
    *,
    prompt_tokens: int,
    max_tokens: int,
    host_buffer_bytes: int,
    limit: LearnedLimit | None = None,
    scored: int = 0,
    most: int = 0,
) -> int:
    """Samples to run at once, at least 1; the arithmetic is in `contract.batch_memory`.

    Args:
        capture: of the longest prompt.
        prompt_tokens: of the longest prompt.
        limit: learned from earlier batches.
        scored: bytes that scoring prompts takes, whatever the size of the batch.
        most: samples; 0: the default of the device.
    """
    budget = budget_of(model, host_buffer_bytes, most)
    if limit is not None:
        need = batch_need(model, structure, capture, prompt_tokens=prompt_tokens, max_tokens=max_tokens)
        learned = limit.most_samples(need)
        budget = replace(budget, cap=budget.cap if learned is None else min(budget.cap, learned))
    return plans.batch_size(
        structure,
        kv_bytes_per_token(model),
        capture,
        budget,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        scored=scored,
    )


def budget_of(model: LoadedModel, host_buffer_bytes: int, most: int = 0) -> plans.Budget:
    """Memory that a batch of this model may use now."""
    on_gpu = model.device.type == "cuda"
    return plans.Budget(
        device_bytes=spread_bytes(model.layer_devices, available_bytes),
        host_buffer_bytes=host_buffer_bytes,
        cap=plans.batch_cap(on_gpu=on_gpu, most=most),
        on_gpu=on_gpu,
    )


def batch_need(
    model: LoadedModel,
    structure: ModelStructure,
    capture: CaptureNeed,
    *,
    prompt_tokens: int,
    max_tokens: int,
    samples: int = 1,
) -> int:
    """Bytes by which batches are compared: those of one sample in a padded batch, times `samples`."""
    pair = plans.batch_memory(
        structure,
        kv_bytes_per_token(model),
        capture,
        samples=2,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
    )
    return samples * (pair.certain + 2 * capture.prompt_rows) // 2


def every_row(structure: ModelStructure, hooks: Sequence[str]) -> CaptureOf:
    """Memory that capturing takes if every row is kept as it is computed."""
    everything = CaptureSpec()
    return lambda prompt: plans.capture_need(structure, hooks, everything, prompt_tokens=prompt)


def spread_bytes(layer_devices: Sequence[torch.device], free: Callable[[torch.device], int]) -> int:
    """Bytes of a batch over all devices when the first of them is full.

    A batch uses each device in proportion to the layers there.

    Args:
        layer_devices: where each layer is.
        free: bytes on a device.
    """
    counts = Counter(layer_devices)
    return min(free(device) * len(layer_devices) // count for device, count in counts.items())


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


def capacity(layer_devices: Sequence[torch.device], resting: Mapping[str, int]) -> dict[str, int]:
    """Memory for a batch on devices and host, counted as if no batch were running.

    Args:
        layer_devices: where each layer is.
        resting: snapshot taken just after the model was loaded.
    """
    devices = tuple(dict.fromkeys(layer_devices))
    now = memory_snapshot(devices)

    def beside_the_batch(where: torch.device) -> int:
        used = "rss_bytes" if where.type == "cpu" else "cuda_allocated_bytes"
        if where.type == "cuda" and len(devices) > 1:
            used = f"cuda_{where.index or 0}_allocated_bytes"
        return available_bytes(where) + max(0, now.get(used, 0) - resting.get(used, now.get(used, 0)))

    return {
        "host_available_bytes": beside_the_batch(torch.device("cpu")),
        "device_available_bytes": spread_bytes(layer_devices, beside_the_batch),
    }


def _rss() -> int:
    fields = _read("/proc/self/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def reset_peak(devices: Iterable[torch.device]) -> None:
    """Restart `cuda_peak_bytes`; the peak of main memory covers the whole process."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
