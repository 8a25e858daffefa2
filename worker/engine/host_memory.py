"""Host memory for rows, apart from the heap in which the model computes."""

import math
import mmap
from collections.abc import Sequence

import torch

#: smaller tensors are left to malloc
_LEAST_BYTES = 64 << 10


def host_empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor in pages of its own, which go back to the kernel when it is freed.

    Rows live long and in large pieces, beside the short-lived tensors of a forward pass and a cache
    that grows with every step. In one heap they leave holes that nothing fits into: with glibc's
    malloc the process grew with the number of tokens although what was held did not.

    Raises:
        MemoryError: the kernel has no more.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < _LEAST_BYTES:
        return torch.empty(*shape, dtype=dtype)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size:,} bytes of host memory for captured rows: {error.strerror}") from error
    return torch.frombuffer(pages, dtype=dtype).view(*shape)


def host_copy(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in such memory, contiguous, as `dtype`."""
    return host_empty(tensor.shape, dtype).copy_(tensor)
