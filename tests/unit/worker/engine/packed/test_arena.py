"""The arena of keys and values: ranges of requests, moved only if they must be."""

import random

import torch

from worker.engine.packed.arena import Arena, LayerShape, Range


def test_ranges_never_overlap_and_moving_keeps_their_tokens() -> None:
    arena = Arena([LayerShape(1, 1, 1, torch.float32, torch.device("cpu"))], 100)
    drawn, held = random.Random(0), dict[Range, int]()
    for turn in range(2000):
        if held and drawn.random() < 0.45:
            gone = drawn.choice(list(held))
            arena.give(gone)
            del held[gone]
        else:
            size = drawn.randint(1, 30)
            made = arena.take(size)
            assert (made is None) == (size > 100 - sum(one.size for one in held))
            if made is not None:
                made.filled, held[made] = size, turn
                for tensor in (arena.keys[0], arena.values[0]):
                    tensor[:, made.start : made.start + size] = turn
        for one, value in held.items():
            for tensor in (arena.keys[0], arena.values[0]):
                assert bool((tensor[0, one.start : one.start + one.filled] == value).all())
    assert arena.moved


def test_ranges_of_blocks_share_none_and_begin_with_zeros() -> None:
    arena = Arena([LayerShape(1, 1, 1, torch.float32, torch.device("cpu"))], 96, block=16)
    drawn, held = random.Random(0), list[Range]()
    for _ in range(500):
        if held and drawn.random() < 0.45:
            gone = held.pop(drawn.randrange(len(held)))
            arena.values[0][:, gone.start : gone.start + gone.size] = (
                torch.nan
            )  # a failed request leaves them
            arena.give(gone)
        elif (made := arena.take(size := drawn.randint(1, 40))) is not None:
            made.filled = size
            arena.values[0][:, made.start : made.start + size] = 1.0
            held.append(made)
        assert all(one.start % 16 == one.size % 16 == 0 for one in held)
        for one in held:
            own = arena.values[0][0, one.start : one.start + one.size, 0]
            assert own.tolist() == [1.0] * one.filled + [0.0] * (one.size - one.filled)
    assert arena.moved
