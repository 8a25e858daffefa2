"""Layers of hooks, and chunks of layers."""

import pytest

from actograph.contract.plans.layer_order import chunks_of

#: of each hook, as in execution order; 3 is the end of a model of three layers
LAYERS = [0, 0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("size", "chunks"),
    [
        (1, [range(0, 3), range(3, 4), range(4, 6), range(6, 7)]),
        (2, [range(0, 4), range(4, 6), range(6, 7)]),
        (3, [range(0, 6), range(6, 7)]),
        (100, [range(0, 6), range(6, 7)]),
    ],
)
def test_chunks_hold_so_many_layers_and_the_end_stands_alone(size: int, chunks: list[range]) -> None:
    assert chunks_of(LAYERS, size, 3) == chunks


def test_only_layers_that_are_wanted_count() -> None:
    assert chunks_of([4, 9, 30], 2, 48) == [range(0, 2), range(2, 3)]
    assert chunks_of([48], 2, 48) == [range(0, 1)]
    assert chunks_of([], 2, 48) == []
