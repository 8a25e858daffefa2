"""Host memory for rows, outside the heap, which other processes can map; the way of numbers to a device.

Rows are large and live longer than the tensors of a forward pass. In one heap they leave holes: with glibc's
malloc the process grew with every token. So rows have their own pages, which go back to the system.
"""

import math
import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from worker.engine.channel import new_region

#: smaller tensors are left to malloc
_LEAST_BYTES = 64 << 10

#: descriptor, address, size and owner of new memory
Listener = Callable[[int, int, int, object], None]


class _Pages(mmap.mmap):
    """Memory that a weak reference can follow."""


_listeners: list[Listener] = []


def on_new(listener: Listener) -> None:
    """Tell `listener` of all memory that is taken from now on."""
    _listeners[:] = [listener]


def host_empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor outside malloc's heap.

    Raises:
        MemoryError: the system has no memory left.
    """
    elements = math.prod(shape)
    size = elements * dtype.itemsize
    if size < _LEAST_BYTES:
        return torch.empty(*shape, dtype=dtype)
    descriptor = new_region(size)
    try:
        pages = _Pages(descriptor, size, flags=mmap.MAP_SHARED)
        made = torch.frombuffer(pages, dtype=dtype, count=elements)
        for listener in _listeners:
            listener(descriptor, made.data_ptr(), size, pages)
    except OSError as error:
        raise MemoryError(f"{size:,} bytes of host memory for captured rows: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return made.view(*shape)


def to_device(numbers: np.ndarray[Any, Any], device: torch.device) -> torch.Tensor:
    """A copy on the device, which does not wait for a GPU; on a CPU the array's own memory."""
    if device.type == "cpu":
        return torch.from_numpy(numbers)
    host = torch.empty(numbers.shape, dtype=torch.from_numpy(numbers).dtype, pin_memory=True)
    host.numpy()[...] = numbers
    return host.to(device, non_blocking=True)
