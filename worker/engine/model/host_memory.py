"""Host memory for rows, outside the heap.

Rows are large and live longer than the tensors of a forward pass. In one heap they leave holes: with glibc's
malloc the process grew with every token. So rows have their own pages, which go back to the system.
"""

import math
import mmap
from collections.abc import Sequence

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
