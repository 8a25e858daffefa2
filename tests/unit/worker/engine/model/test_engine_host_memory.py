"""Memory for rows outside malloc's heap: reuse, and an error when it runs out."""

import mmap
from collections.abc import Iterator

import pytest
import torch

from worker.engine.model import host_memory
from worker.engine.model.host_memory import host_empty

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    host_memory._idle.clear()
    yield
    host_memory._idle.clear()


def test_a_freed_piece_is_used_again_once_nothing_looks_at_it() -> None:
    first = host_empty((MIB,), torch.uint8)
    address, row = first.data_ptr(), first.view(1024, 1024)[5]
    row.fill_(7)
    del first
    other = host_empty((MIB,), torch.uint8)
    assert other.data_ptr() != address, "a view still reads the piece"
    assert row.eq(7).all()
    del row
    again = host_empty((MIB - 4096,), torch.uint8)
    assert again.data_ptr() == address
    assert host_empty((MIB // 4,), torch.uint8).data_ptr() != other.data_ptr()


def test_running_out_is_an_error_that_halves_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", full)
    with pytest.raises(MemoryError, match="1,048,576 bytes of host memory"):
        host_empty((MIB,), torch.uint8)
