"""Errors of a device: memory that ran out, and failures that need a new process."""

from collections.abc import Mapping, Sequence

import torch

from actograph.contract.errors import OutOfDeviceMemory

#: messages of failed devices, from libraries that do not raise torch's own class
_LOST = (
    "CUDA error:",
    "device-side assert",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR",
)
#: messages of allocators other than torch's own: main memory, CUDA (pinned memory), library workspaces
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class RankFailed(RuntimeError):
    """One of several ranks has failed: they are out of step, and all have to end."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if an allocator failed: torch's on any device, or Python's."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError | OutOfDeviceMemory):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _OUT_OF_MEMORY)


def is_device_lost(error: BaseException | None) -> bool:
    """True if the error, or one that caused it, leaves the process unable to use its device.

    Running out of memory does not count.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, RankFailed):
            return True
        if not is_out_of_memory(error) and (
            isinstance(error, torch.AcceleratorError)
            or (isinstance(error, RuntimeError) and any(sign in str(error) for sign in _LOST))
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def out_of_memory(devices: Sequence[torch.device], what: str, seen: Mapping[str, int]) -> OutOfDeviceMemory:
    """Build the error for `what`.

    Args:
        seen: `memory_snapshot` when memory ran out; goes into the error's `details`.
    """
    numbers = ", ".join(f"{name} {value:,}" for name, value in seen.items())
    return OutOfDeviceMemory(
        f"{what} does not fit into the memory of {', '.join(map(str, devices))}: {numbers}. "
        "Shorten the prompt, lower max_tokens, capture fewer hooks, or use a larger device.",
        details=seen,
    )
