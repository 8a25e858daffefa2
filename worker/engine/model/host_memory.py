"""Host memory for rows, outside the heap, which other processes can map; the way of numbers to a device.

Rows are large and live longer than the tensors of a forward pass. In one heap they leave holes: with glibc's
malloc the process grew with every token. So rows have their own pages, which go back to the system.
"""

import logging
import math
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from worker.engine.channel import new_region

logger = logging.getLogger(__name__)

_PAGE = mmap.PAGESIZE

#: descriptor, address, size and owner of new memory
Listener = Callable[[int, int, int, object], None]

_listeners: list[Listener] = []


class _Pages(mmap.mmap):
    """Memory that a weak reference can follow."""


def on_new(listener: Listener) -> None:
    """Tell `listener` of all memory that is taken from now on."""
    _listeners[:] = [listener]


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
        descriptor = new_region(size)
        try:
            self._pages = _Pages(descriptor, size, flags=mmap.MAP_SHARED)
            tensor = torch.frombuffer(self._pages, dtype=dtype, count=count)
            for listener in _listeners:
                listener(descriptor, tensor.data_ptr(), size, self._pages)
        except OSError as error:
            raise MemoryError(f"{size:,} bytes of host memory for captured rows: {error.strerror}") from error
        finally:
            os.close(descriptor)
        self.tensor = tensor.view(*shape)

    def release(self, start: int, stop: int) -> None:
        """Give the whole pages among bytes `start` to `stop - 1` back; what they held is lost."""
        first, end = -(-start // _PAGE) * _PAGE, stop // _PAGE * _PAGE
        if first < end:
            self._pages.madvise(mmap.MADV_REMOVE, first, end - first)


def pinned_bytes(size: int) -> torch.Tensor:
    """Memory to which a GPU copies, uint8 [size]. If another process follows it, it can map it.

    Raises:
        MemoryError, RuntimeError: there is not so much.
    """
    if not _listeners:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    pages = HostPages((size,), torch.uint8)
    address = pages.tensor.data_ptr()
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = runtime.cudaHostRegister(address, size, 0)
    if int(status) != 0:
        # rows then pass through the socket
        logger.warning("shared memory cannot be registered with the GPU (%s); rows take a slower way", status)
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    weakref.finalize(pages._pages, runtime.cudaHostUnregister, address)
    return pages.tensor


class HostCopy:
    """Copies of tensors on the host, begun now and read later; on a CPU the tensors themselves."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._copies, self._event = list(tensors), None
        device = tensors[0].device
        if device.type == "cuda":
            targets = [torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in tensors]
            self._copies = [
                target.copy_(one, non_blocking=True) for target, one in zip(targets, tensors, strict=True)
            ]
            self._event = torch.cuda.current_stream(device).record_event()

    def read(self) -> list[list[Any]]:
        """The numbers of each. Waits for the device's work up to the copies, and for none that came after."""
        if self._event is not None:
            self._event.synchronize()
        return [copy.tolist() for copy in self._copies]


def to_device(numbers: np.ndarray[Any, Any], device: torch.device) -> torch.Tensor:
    """A copy on the device, which does not wait for a GPU; on a CPU the array's own memory."""
    if device.type == "cpu":
        return torch.from_numpy(numbers)
    host = torch.empty(numbers.shape, dtype=torch.from_numpy(numbers).dtype, pin_memory=True)
    host.numpy()[...] = numbers
    return host.to(device, non_blocking=True)
