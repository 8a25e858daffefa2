"""Which errors mean that memory ran out, and what is told of it."""

from collections.abc import Callable

import pytest
import torch

from actograph.contract.base import ErrorRecord
from actograph.contract.errors import OutOfDeviceMemory
from worker.engine.model import device_errors, memory


def _impossible() -> None:
    torch.empty(1 << 50, dtype=torch.float32)


def _raise(error: Exception) -> Callable[[], None]:
    def go() -> None:
        raise error

    return go


def test_what_counts_as_out_of_memory(subtests: pytest.Subtests) -> None:
    for happens, counts in [
        (_impossible, True),
        (_raise(torch.OutOfMemoryError("CUDA out of memory")), True),
        (_raise(MemoryError()), True),
        (_raise(torch.AcceleratorError("CUDA error: out of memory")), True),
        (_raise(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")), True),
        (_raise(torch.AcceleratorError("CUDA error: an illegal memory access was encountered")), False),
        (_raise(RuntimeError("index out of range")), False),
        (_raise(ValueError("CUDA error: out of memory")), False),
    ]:
        with subtests.test(happens=happens, counts=counts):
            with pytest.raises(Exception) as caught:
                happens()
            assert device_errors.is_out_of_memory(caught.value) is counts


def test_the_error_carries_the_numbers() -> None:
    seen = memory.memory_snapshot()
    error = device_errors.out_of_memory([torch.device("cpu")], "a prompt of 7 tokens", seen)
    assert isinstance(error, OutOfDeviceMemory)
    assert f"rss_bytes {seen['rss_bytes']:,}" in error.message
    assert "a prompt of 7 tokens" in error.message
    record = ErrorRecord.model_validate(error.as_record())
    assert record.type == "cuda_out_of_memory"
    assert record.details == seen
