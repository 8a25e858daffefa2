"""Free memory and memory in use, of host and devices."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

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


def used_of_devices(devices: Iterable[torch.device]) -> dict[str, int]:
    """Bytes in use of the devices and in all, by whatever process; on a CPU those of the machine.

    A cgroup's limit counts as all there is.
    """
    used = total = 0
    for device in dict.fromkeys(devices):
        if device.type == "cuda":
            free, size = torch.cuda.mem_get_info(device)
        else:
            free, size = available_bytes(device), _ram_total()
        used, total = used + max(0, size - free), total + size
    return {"device_used_bytes": used, "device_total_bytes": total}


def _ram_total() -> int:
    """Bytes of the machine, or the cgroup's limit if that is less."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        most = _read(limit).strip()
        found = min(found, int(most)) if most.isdigit() else found
    return found


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


class MemoryWatch:
    """Memory in use when this was made, since then at the peak, and now.

    Of GPUs it is what torch's allocator has handed out, on each of them; without GPUs, the resident memory of
    this process. The peak of the devices, or of the process, begins anew.

    Args:
        devices: of the work that is watched. CUDA is initialised if one is a GPU.
    """

    #: watches that have not ended, whose peaks a later one would hide
    _open: ClassVar[list["MemoryWatch"]] = []

    def __init__(self, devices: Iterable[torch.device]) -> None:
        #: None is this process
        self._places: list[torch.device | None] = [one for one in devices if one.type == "cuda"] or [None]
        if self._places != [None]:
            # the allocator has no peak to reset before
            torch.cuda.init()  # type: ignore[no-untyped-call]
        for watch in self._open:
            watch._note()
        self._knows_peak = all(_reset_peak(place) for place in self._places)
        self._before = [_in_use(place) for place in self._places]
        self._peaks = list(self._before)
        self._open.append(self)

    def _note(self) -> None:
        """Take in the peak so far."""
        self._peaks = [max(peak, _peak(place)) for peak, place in zip(self._peaks, self._places, strict=True)]

    def so_far(self) -> dict[str, int]:
        """Bytes `before` and at the `peak`, each the sum over the GPUs; without `peak` if it is unknown."""
        self._note()
        found = {"before": sum(self._before)}
        return found | ({"peak": sum(self._peaks)} if self._knows_peak else {})

    def most(self) -> int:
        """Most bytes that were taken so far, of the GPU where it is most."""
        self._note()
        return max(peak - held for peak, held in zip(self._peaks, self._before, strict=True))

    def close(self) -> None:
        """Watch no longer."""
        if self in self._open:
            self._open.remove(self)

    def end(self) -> dict[str, int]:
        """What `so_far` returns, and the bytes `after`."""
        found = self.so_far()
        self.close()
        return found | {"after": sum(map(_in_use, self._places))}


def _in_use(place: torch.device | None) -> int:
    return _rss() if place is None else torch.cuda.memory_allocated(place)


def _peak(place: torch.device | None) -> int:
    return _peak_rss() if place is None else torch.cuda.max_memory_allocated(place)


def _reset_peak(place: torch.device | None) -> bool:
    """Let the peak begin anew. Returns False if this system does not allow it."""
    if place is not None:
        torch.cuda.reset_peak_memory_stats(place)
        return True
    try:
        # proc(5), clear_refs: the high-water mark of the resident memory
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_over(devices: Iterable[torch.device], work: Callable[[], object]) -> int:
    """Most bytes that `work` takes of a GPU, of that one of these GPUs where it takes most."""
    gpus = [device for device in devices if device.type == "cuda"]
    if not gpus:
        work()
        return 0
    watch = MemoryWatch(gpus)
    try:
        work()
        return watch.most()
    finally:
        watch.close()


def memory_snapshot(devices: Iterable[torch.device] = ()) -> dict[str, int]:
    """Bytes in use now and at the peak: of this process, and of its GPUs."""
    snapshot = {"rss_bytes": _rss(), "peak_rss_bytes": _peak_rss()}
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


def _peak_rss() -> int:
    """Most resident memory since `_reset_peak`, or since the process began."""
    for line in _read("/proc/self/status").splitlines():
        if line.startswith("VmHWM:"):
            # the kernel updates it late: it may be below the memory in use
            return max(_rss(), int(line.split()[1]) * 1024)
    return _rss()


def _rss() -> int:
    fields = _read("/proc/self/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0
