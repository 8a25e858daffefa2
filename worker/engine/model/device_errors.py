"""Errors of the device that only a new process recovers from."""

import torch

from worker.engine.model.memory import is_out_of_memory

#: forms in which libraries report a failed device without torch's own class for it
_SIGNS = (
    "CUDA error:",
    "device-side assert",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR",
)


def is_device_lost(error: BaseException | None) -> bool:
    """True if the error, or one that led to it, leaves the process unable to use its device.

    An allocator that gave up is no such error.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if not is_out_of_memory(error) and (
            isinstance(error, torch.AcceleratorError)
            or (isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS))
        ):
            return True
        error = error.__cause__ or error.__context__
    return False
