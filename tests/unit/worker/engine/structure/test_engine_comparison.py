"""When tensors count as equal, and as sums; where a location ends and its part begins."""

import pytest
import torch

from worker.engine.locations import place_of
from worker.engine.structure.comparison import adds_up, close, same


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


@DTYPES
def test_a_term_that_changes_nothing_proves_nothing(dtype: torch.dtype) -> None:
    before, delta = stream(dtype)
    assert not adds_up(before, before, torch.zeros_like(delta))


def test_the_same_numbers_in_a_wider_dtype() -> None:
    before, delta = stream(torch.bfloat16)
    assert same(before, before.float())
    assert not same(before, before + delta)
    assert not same(before, before[:, :5])
    assert not same(torch.tensor([torch.nan]), torch.tensor([torch.nan]))


def test_close_allows_a_few_roundings() -> None:
    a = torch.tensor([1.0, 2.0, -3.0])
    assert close(a, a * (1 + 1e-7))
    assert not close(a, a * 1.001)
    assert close(a.bfloat16(), a.bfloat16() * 1.01)
    assert not close(a, a[:2])


def test_places(subtests: pytest.Subtests) -> None:
    for location, path, side, part in [
        ("model.layers.3.mlp.output", "model.layers.3.mlp", "output", 0),
        ("model.layers.3.input", "model.layers.3", "input", 0),
        ("model.layers.3.mlp.gate.output.2", "model.layers.3.mlp.gate", "output", 2),
        ("bert.output.dense.output", "bert.output.dense", "output", 0),
        ("blocks.output.1.output", "blocks.output.1", "output", 0),
    ]:
        with subtests.test(location=location, path=path, side=side, part=part):
            assert place_of(location) == (path, side, part)
            assert place_of(location).parent == path.rpartition(".")[0]


@pytest.mark.parametrize("location", ["model.layers.3", "output", "model.output.0", "model.input.x", ""])
def test_what_is_no_place(location: str) -> None:
    with pytest.raises(ValueError, match="not a module location"):
        place_of(location)
