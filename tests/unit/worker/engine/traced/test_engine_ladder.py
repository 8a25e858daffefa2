"""Running out of memory: halve, hold nothing back, give up on single samples only."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import torch

from actograph.contract.base import ErrorRecord
from actograph.contract.errors import OutOfDeviceMemory
from worker.engine import batches
from worker.engine.batches import descend, sparing
from worker.engine.model import device_errors, memory
from worker.engine.requests import BufferOptions


@pytest.fixture(autouse=True)
def no_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full collection of garbage takes a third of a second."""
    monkeypatch.setattr(batches, "release", lambda: None)


@dataclass
class Descent:
    """What a descent did, for samples of given sizes and so much room."""

    tried: list[tuple[tuple[int, ...], bool]] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    reset: list[int] = field(default_factory=list)
    lost: dict[int, Mapping[str, int]] = field(default_factory=dict)


def run(sizes: Sequence[int], room: int, *, saved: int = 0, can_spare: bool = True) -> Descent:
    """`saved`: by how much a sample is smaller where it is run sparingly."""
    seen = Descent()
    held = [0]

    def attempt(batch: Sequence[int], spare: bool) -> None:
        seen.tried.append((tuple(batch), spare))
        held[0] = sum(sizes[i] - saved * spare for i in batch)
        if held[0] > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        seen.done += batch

    descend(
        [range(len(sizes))],
        attempt=attempt,
        reset=seen.reset.extend,
        observe=lambda: {"held": held[0]},
        give_up=seen.lost.__setitem__,
        can_spare=can_spare,
    )
    return seen


def test_a_batch_that_fits_runs_once() -> None:
    seen = run([1, 1, 1], 3)
    assert seen.tried == [((0, 1, 2), False)]
    assert (seen.reset, seen.lost) == ([], {})


def test_halves_run_in_order_and_everything_is_run_once() -> None:
    seen = run([1] * 7, 2)
    assert seen.done == list(range(7))
    assert set(seen.reset) == set(range(7))
    assert not seen.lost


def test_a_sample_that_fits_with_nothing_held_back_is_not_lost() -> None:
    seen = run([1, 5, 1], 3, saved=2)
    assert seen.done == [0, 1, 2]
    assert [batch for batch, spare in seen.tried if spare] == [(1,)]
    assert not seen.lost


def test_a_sample_too_large_alone_is_given_up_with_what_was_seen_and_the_others_go_on() -> None:
    seen = run([1, 9, 1, 1], 3, saved=2)
    assert seen.lost == {1: {"held": 7}}
    assert sorted(seen.done) == [0, 2, 3]
    assert [spare for batch, spare in seen.tried if batch == (1,)] == [False, True]


def test_the_sparing_rung_is_left_out_where_it_would_be_the_same_thing() -> None:
    seen = run([9], 3, can_spare=False)
    assert seen.tried == [((0,), False)]
    assert seen.lost == {0: {"held": 9}}


def test_nothing_is_tried_twice_in_the_same_way_whatever_the_sizes() -> None:
    draw = random.Random(5)
    for _ in range(300):
        sizes = [draw.randint(1, 12) for _ in range(draw.randint(1, 9))]
        room, saved = draw.randint(0, 20), draw.randint(0, 3)
        seen = run(sizes, room, saved=saved, can_spare=draw.random() < 0.7)
        assert len(set(seen.tried)) == len(seen.tried)
        assert sorted([*seen.done, *seen.lost]) == list(range(len(sizes)))
        assert len(seen.done) == len(set(seen.done))


def test_sparing_options_hold_nothing_back_and_are_a_fixed_point() -> None:
    least = sparing(BufferOptions())
    assert least.max_block_steps == 1
    assert least.device_buffer_bytes == 0
    assert least.wait_for_copies
    assert least.host_buffer_bytes == BufferOptions().shard_bytes
    assert sparing(least) == least


def test_other_errors_are_not_swallowed() -> None:
    def attempt(batch: Sequence[int], spare: bool) -> None:
        raise RuntimeError("shape mismatch")

    def nothing(*_: object) -> None:
        pytest.fail("no rung is taken for an error that is not of an allocator")

    with pytest.raises(RuntimeError, match="shape mismatch"):
        descend([[0]], attempt=attempt, reset=nothing, observe=dict, give_up=nothing, can_spare=True)


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


def test_an_error_without_numbers_has_no_details() -> None:
    assert OutOfDeviceMemory("full").as_record() == {"type": "cuda_out_of_memory", "message": "full"}


def test_memory_snapshot_and_available_bytes() -> None:
    snapshot = memory.memory_snapshot()
    assert 0 < snapshot["rss_bytes"] <= snapshot["peak_rss_bytes"]
    assert memory.available_bytes(torch.device("cpu")) > 1 << 20
