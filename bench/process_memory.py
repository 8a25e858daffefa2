"""Memory of a process and its peak, for benches that measure in fresh processes."""

import ctypes
import gc
import resource
from pathlib import Path

import torch

from worker.engine.model import memory


def trim() -> None:
    """Give what building a model left in the heap back to the kernel, or it would hide growth."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def in_use(*, on_gpu: bool) -> int:
    """Bytes: of the resident size, or of what torch's allocator handed out."""
    snapshot = memory.memory_snapshot([torch.device("cuda")] if on_gpu else [])
    return snapshot["cuda_allocated_bytes" if on_gpu else "rss_bytes"]


def reset_peak(*, on_gpu: bool) -> None:
    """Let the peak begin anew: torch's, or the kernel's high-water mark (proc(5), clear_refs)."""
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def peak(*, on_gpu: bool) -> int:
    """Most bytes in use since `reset_peak`."""
    if on_gpu:
        return torch.cuda.max_memory_allocated()
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, in_use(on_gpu=False))
