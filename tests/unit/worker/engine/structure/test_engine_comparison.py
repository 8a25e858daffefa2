"""When tensors count as equal, and as sums; where a location ends and its part begins."""

import pytest
import torch

from worker.engine.structure.comparison import adds_up


def stream(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A residual stream with one channel thousands of times larger, and what is added to it."""
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(3, 11, 16, generator=generator)
    before[..., 5] = 4000.0
    return before.to(dtype), torch.randn(3, 11, 16, generator=generator).to(dtype)


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


@DTYPES
def test_a_sum_in_any_dtype_and_order(dtype: torch.dtype) -> None:
    before, delta = stream(dtype)
    third = delta.flip(0) / 3
    assert adds_up(before + delta, before, delta)
    assert adds_up((before + delta) + third, before, delta, third)
    assert adds_up(before + (delta + third), before, delta, third)


@DTYPES
def test_what_is_no_sum(dtype: torch.dtype) -> None:
    before, delta = stream(dtype)
    assert not adds_up(before + delta, before, delta.flip(1))
    assert not adds_up(before + 1.1 * delta, before, delta)
    assert not adds_up(before, before, delta)
    assert not adds_up(before + delta, before, delta[:, :5])
