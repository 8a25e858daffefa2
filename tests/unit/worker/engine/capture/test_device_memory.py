"""Memory of a device that is taken at once, and the pieces of it."""

import random

import pytest
import torch

from worker.engine.capture.budget import Budget, DeviceMemory, Piece

CPU = torch.device("cpu")


def test_large_pieces_lie_at_the_beginning_and_small_ones_at_the_end() -> None:
    memory = DeviceMemory(CPU, 10 * 512 + 100)
    first, small = memory.piece(1000, CPU), memory.piece(8, CPU, small=True)
    assert first is not None and small is not None
    assert (first.start, first.taken, small.start) == (0, 1024, 9 * 512)
    assert (memory.used, memory.largest) == (3 * 512, 7 * 512)
    second = memory.piece(7 * 512, CPU)
    assert second is not None and memory.piece(1, CPU) is None and memory.piece(1, CPU, small=True) is None
    nothing = memory.piece(0, CPU, small=True)
    assert nothing is not None, "which always fits"
    memory.remove(nothing)
    memory.remove(first)
    assert memory.largest == 1024 and memory.piece(1025, CPU) is None
    for piece in (small, second):
        memory.remove(piece)
    assert (memory.used, memory.largest) == (0, 10 * 512)


def test_pieces_never_overlap_and_all_come_back() -> None:
    draw, memory = random.Random(3), DeviceMemory(CPU, 1 << 16)
    held: list[tuple[Piece, torch.Tensor, int]] = []
    for number in range(600):
        if held and draw.random() < 0.5:
            piece, tensor, value = held.pop(draw.randrange(len(held)))
            assert tensor.eq(value).all(), "nobody else wrote there"
            memory.remove(piece)
        size = draw.randrange(1, 700)
        made = memory.piece(4 * size, CPU, small=draw.random() < 0.5)
        if made is not None:
            held.append((made, made.tensor((size,), torch.int32).fill_(number), number))
    assert memory.used == sum(piece.taken for piece, *_ in held)
    for piece, *_ in held:
        memory.remove(piece)
    assert (memory.used, memory.largest) == (0, 1 << 16)


def test_a_piece_holds_the_tensors_that_it_was_taken_for() -> None:
    for memory in (DeviceMemory(CPU, 4096), Budget(4096)):
        piece = memory.piece(24 + 40, CPU)
        assert piece is not None
        a, b = piece.tensor((2, 3), torch.float32).fill_(1.5), piece.tensor((5,), torch.float64).fill_(2.5)
        assert a.eq(1.5).all() and b.eq(2.5).all()
        assert (a.shape, b.dtype) == ((2, 3), torch.float64)
        if isinstance(memory, DeviceMemory):
            with pytest.raises(MemoryError, match="4 bytes do not fit in a piece of 0"):
                piece.tensor((1,), torch.float32)
        memory.remove(piece)
        assert memory.used == 0
