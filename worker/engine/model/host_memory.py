"""Host memory for rows, outside the heap, and the way of numbers to a device.

Rows are large and live longer than the tensors of a forward pass. In one heap they leave holes: with glibc's
malloc the process grew with every token. So rows have their own pages, which go back to the system.
"""

import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

#: smaller tensors are left to malloc
_LEAST_BYTES = 64 << 10


def host_empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor outside malloc's heap.

    Raises:
        MemoryError: the system has no memory left.
    """
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size < _LEAST_BYTES:
        return torch.empty(*shape, dtype=dtype)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size:,} bytes of host memory for captured rows: {error.strerror}") from error
    return torch.frombuffer(pages, dtype=dtype, count=count).view(*shape)


def to_device(numbers: np.ndarray[Any, Any], device: torch.device) -> torch.Tensor:
    """A copy on the device, which does not wait for a GPU; on a CPU the array's own memory."""
    if device.type == "cpu":
        return torch.from_numpy(numbers)
    host = torch.empty(numbers.shape, dtype=torch.from_numpy(numbers).dtype, pin_memory=True)
    host.numpy()[...] = numbers
    return host.to(device, non_blocking=True)
