"""Summaries built block by block, against numpy in float64 over all rows at once."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from worker.engine.capture.statistics import Mean, Statistics, Summariser, Summary

POINTS, WIDTH = 2, 5
torch.set_num_threads(1)


def by_blocks(kind: Summariser, x: torch.Tensor, sizes: list[int]) -> Summary:
    """The summary of all rows, taken in blocks of these sizes."""
    known: Summary | None = None
    start = 0
    for size in itertools.cycle(sizes):
        if start >= x.shape[1]:
            break
        new = kind.of(x[:, start : start + size])
        known = new if known is None else kind.merged(known, new)
        start += size
    assert known is not None
    return kind.finished(known, x.shape[1])


def data(seed: int, rows: int, *, offset: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Skewed channels around `offset`, of scales from 0.01 to 100."""
    rng = np.random.default_rng(seed)
    scale = np.array([0.01, 0.1, 1, 10, 100])
    made = (rng.gamma(2.0, size=(POINTS, rows, WIDTH)) - 1) * scale + offset
    return torch.from_numpy(made).to(dtype)


def test_statistics_equal_numpys(subtests: pytest.Subtests) -> None:
    for sizes in [[1], [7], [64, 1, 3], [1000]]:
        for offset in [0.0, -3.5, 1000.0]:
            for dtype in [torch.float32, torch.bfloat16]:
                with subtests.test(dtype=dtype, offset=offset, sizes=sizes):
                    for length in (301, 1, 120):
                        x = data(length, length, offset=offset, dtype=dtype)
                        assert_numpys(by_blocks(Statistics(threshold=2.0), x, sizes), x)


def assert_numpys(got: Summary, x: torch.Tensor) -> None:
    assert list(got) == ["count", "mean", "variance", "min", "max", "rms", "kurtosis", "over"]
    for p in range(POINTS):
        rows = x[p].double().numpy()
        apart = rows - rows.mean(0)
        with np.errstate(invalid="ignore"):
            kurtosis = (apart**4).mean(0) / rows.var(0) ** 2 - 3
        want: dict[str, Any] = {
            "count": [len(rows)],
            "mean": rows.mean(0),
            "variance": rows.var(0),
            "min": rows.min(0),
            "max": rows.max(0),
            "rms": np.sqrt((rows**2).mean(0)),
            "kurtosis": kurtosis,
            "over": (np.abs(rows) > 2.0).sum(0),
        }
        for name, value in want.items():
            # kurtosis around 1000 of a spread of 0.01 loses digits in the subtraction itself
            close = {"rtol": 1e-6 if name == "kurtosis" else 1e-9, "atol": 1e-12, "equal_nan": True}
            np.testing.assert_allclose(got[name][p].numpy(), value, err_msg=name, **close)


def test_a_channel_that_does_not_vary_has_no_kurtosis() -> None:
    x = torch.full((POINTS, 50, WIDTH), 0.1)
    got = by_blocks(Statistics(), x, [7])
    assert got["kurtosis"].isnan().all()
    assert torch.allclose(got["variance"], torch.zeros(()).double(), atol=1e-30)
    assert "over" not in got


def test_a_mean_of_half_precision_is_accumulated_in_float32() -> None:
    x = torch.full((POINTS, 5000, WIDTH), 1.0, dtype=torch.bfloat16)
    assert torch.equal(by_blocks(Mean(), x, [64])[""], torch.ones(POINTS, WIDTH))
