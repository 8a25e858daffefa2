"""Host memory for rows, outside the heap.

Rows are large and live longer than the tensors of a forward pass. In one heap they leave holes: with glibc's
malloc the process grew with every token. So rows have their own pages, which go back to the system.
"""

import math
import mmap
from collections.abc import Sequence

import torch

_PAGE = mmap.PAGESIZE


class HostPages:
    """An uninitialised tensor whose pages the system gives as they are written, and takes back on request.

    Attributes:
        tensor: of the requested shape, on the CPU.

    Raises:
        MemoryError: the system has no room for its addresses.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        count = math.prod(shape)
        size = count * dtype.itemsize
        try:
            self._pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"{size:,} bytes of host memory for captured rows: {error.strerror}") from error
        self.tensor = torch.frombuffer(self._pages, dtype=dtype, count=count).view(*shape)

    def release(self, start: int, stop: int) -> None:
        """Give the whole pages among bytes `start` to `stop - 1` back; what they held is lost."""
        first, end = -(-start // _PAGE) * _PAGE, stop // _PAGE * _PAGE
        if first < end:
            self._pages.madvise(mmap.MADV_DONTNEED, first, end - first)
