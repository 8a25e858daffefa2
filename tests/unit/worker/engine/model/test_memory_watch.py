"""Memory before, after and at the peak of a piece of work. GPUs: see test_fake_cuda.py."""

import pytest
import torch

from worker.engine.model import memory
from worker.engine.model.memory import MemoryWatch, memory_snapshot

MIB = 1 << 20
CPU = torch.device("cpu")


def _written(size: int) -> torch.Tensor:
    return torch.ones(size, dtype=torch.uint8)


def test_the_peak_is_that_of_the_watched_work_alone() -> None:
    _written(96 * MIB)  # before
    watch = MemoryWatch([CPU])
    large = _written(64 * MIB)
    # a watch inside takes nothing of the outer one's peak
    inner = MemoryWatch([CPU])
    del large
    kept = _written(8 * MIB)
    short, found = inner.end(), watch.end()
    assert found.keys() == {"before", "after", "peak"}
    assert 60 * MIB < found["peak"] - found["before"] < 90 * MIB
    assert found["after"] - found["before"] < 40 * MIB
    assert short["before"] > found["after"]
    assert memory_snapshot()["peak_rss_bytes"] >= kept.nbytes


def test_an_unknown_peak_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_reset_peak", lambda place: False)
    assert MemoryWatch([CPU]).end().keys() == {"before", "after"}
