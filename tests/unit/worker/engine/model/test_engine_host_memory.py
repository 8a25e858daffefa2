"""Memory for rows outside malloc's heap: it lives as long as its views, and goes back page by page."""

import mmap
import os

import pytest
import torch

from worker.engine.model.host_memory import HostPages

MIB = 1 << 20


def test_a_view_keeps_its_memory() -> None:
    first = HostPages((MIB,), torch.uint8)
    row = first.tensor.view(1024, 1024)[5]
    row.fill_(7)
    del first
    HostPages((MIB,), torch.uint8).tensor.fill_(1)
    assert row.eq(7).all()


def test_whole_pages_go_back_and_are_zeros_when_used_again() -> None:
    pages, page = HostPages((3, mmap.PAGESIZE), torch.uint8), mmap.PAGESIZE
    pages.tensor.fill_(7)
    pages.release(page // 2, 2 * page + 5)  # one whole page
    assert pages.tensor[0].eq(7).all() and pages.tensor[2].eq(7).all()
    assert pages.tensor[1].eq(0).all()
    pages.release(10, 20)
    assert pages.tensor[0].eq(7).all(), "a part of a page stays"


def test_running_out_is_an_error_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(os, "memfd_create", full)
    with pytest.raises(MemoryError, match="1,048,576 bytes of host memory"):
        HostPages((MIB,), torch.uint8)
