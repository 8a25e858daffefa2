"""Memory for rows outside malloc's heap: it lives as long as its views, and running out is an error."""

import os

import pytest
import torch

from worker.engine.model.host_memory import host_empty

MIB = 1 << 20


def test_a_view_keeps_its_memory() -> None:
    first = host_empty((MIB,), torch.uint8)
    row = first.view(1024, 1024)[5]
    row.fill_(7)
    del first
    host_empty((MIB,), torch.uint8).fill_(1)
    assert row.eq(7).all()


def test_running_out_is_an_error_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(os, "memfd_create", full)
    with pytest.raises(MemoryError, match="1,048,576 bytes of host memory"):
        host_empty((MIB,), torch.uint8)
