"""Running out of memory: halve, go on, give up on single samples only."""

from collections.abc import Sequence

import pytest
import torch

from actograph.contract.errors import OutOfDeviceMemory
from worker.engine import memory
from worker.engine.ladder import descend


def run(sizes: Sequence[int], room: int) -> tuple[list[list[int]], list[int], list[int], int]:
    """Batches that went through, indices reset, indices given up, largest batch."""
    done: list[list[int]] = []
    reset: list[int] = []
    lost: list[int] = []

    def attempt(batch: Sequence[int]) -> None:
        if sum(sizes[i] for i in batch) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        done.append(list(batch))

    largest = descend(range(len(sizes)), attempt=attempt, reset=reset.extend, give_up=lost.append)
    return done, reset, lost, largest


def test_a_batch_that_fits_runs_once() -> None:
    assert run([1, 1, 1], 3) == ([[0, 1, 2]], [], [], 3)


def test_halves_run_in_order_and_everything_is_run_once() -> None:
    done, reset, lost, largest = run([1] * 7, 2)
    assert [i for batch in done for i in batch] == list(range(7))
    assert set(reset) == set(range(7))
    assert not lost
    assert largest == 2


def test_a_sample_too_large_alone_is_given_up_and_the_others_go_on() -> None:
    done, _, lost, _ = run([1, 9, 1, 1], 3)
    assert lost == [1]
    assert sorted(i for batch in done for i in batch) == [0, 2, 3]


def test_other_errors_are_not_swallowed() -> None:
    def attempt(batch: Sequence[int]) -> None:
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch"):
        descend([0], attempt=attempt, reset=lambda _: None, give_up=lambda _: None)


def test_what_counts_as_out_of_memory() -> None:
    assert memory.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert memory.is_out_of_memory(MemoryError())
    assert not memory.is_out_of_memory(RuntimeError("index out of range"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.float32)
    assert memory.is_out_of_memory(caught.value)


def test_the_error_carries_the_numbers() -> None:
    error = memory.out_of_memory(torch.device("cpu"), "a prompt of 7 tokens")
    assert isinstance(error, OutOfDeviceMemory)
    assert "rss_bytes" in error.message
    assert "a prompt of 7 tokens" in error.message


def test_memory_snapshot_and_available_bytes() -> None:
    snapshot = memory.memory_snapshot()
    assert 0 < snapshot["rss_bytes"] <= snapshot["peak_rss_bytes"] * 1.05
    assert memory.available_bytes(torch.device("cpu")) > 1 << 20
