"""Host memory for rows, outside the heap.

Rows are large and live longer than the tensors of a forward pass. In one heap they leave holes: with glibc's
malloc the process grew with every token. So rows have their own pages. The first access to a page is slow, so
freed pages are kept for the next tensor of about that size.
"""

import math
import mmap
import weakref
from collections import deque
from collections.abc import Sequence

import torch

#: smaller tensors are left to malloc
_LEAST_BYTES = 64 << 10
#: most bytes and pieces that are kept
_IDLE_BYTES = 64 << 20
_IDLE_PIECES = 64
#: a piece is used again for a tensor that fills at least this part of it
_FILLED = 0.75

_idle: deque[mmap.mmap] = deque()


def host_empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor outside malloc's heap.

    Raises:
        MemoryError: the system has no memory left.
    """
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size < _LEAST_BYTES:
        return torch.empty(*shape, dtype=dtype)
    pages = _kept(size)
    if pages is None:
        try:
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"{size:,} bytes of host memory for captured rows: {error.strerror}") from error
    # only the tensor's storage holds the view: it is freed with the last tensor
    view = memoryview(pages)
    weakref.finalize(view, _keep, pages).atexit = False
    return torch.frombuffer(view, dtype=dtype, count=count).view(*shape)


def _kept(size: int) -> mmap.mmap | None:
    """A kept piece for `size` bytes, or None."""
    for pages in tuple(_idle):
        if size <= len(pages) <= size / _FILLED:
            try:
                _idle.remove(pages)
            except ValueError:  # another thread was faster
                continue
            return pages
    return None


def _keep(pages: mmap.mmap) -> None:
    """Keep the pages of a freed tensor, or drop them; the oldest pieces go first.

    It runs in any thread at any moment, so it takes no lock.
    """
    if len(pages) > _IDLE_BYTES:
        return
    _idle.append(pages)
    while len(_idle) > _IDLE_PIECES or sum(map(len, tuple(_idle))) > _IDLE_BYTES:
        try:
            _idle.popleft()
        except IndexError:
            return
