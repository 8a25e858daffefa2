"""Rows of 8-bit floats with a scale each: numbers, their largest error, and what is not finite."""

from typing import get_args

import numpy as np
import pytest
import torch

from actograph import dtypes
from actograph.contract.specs import Dtype
from actograph.dtypes import BY_TORCH, SCALE_BYTES, read_as, row_bytes, unscaled
from worker.engine.capture.host_rows import DTYPE_NAMES
from worker.engine.capture.selection import DTYPES, encoded, scales

#: as docs/guides/capture.md states it: shares of a number, and of the largest one of its row
OF_NUMBER, OF_ROW, AT_MOST = 1 / 16, 2.3e-6, 1 / 28
WIDTH = 512


def _rows() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(64, WIDTH, generator=generator)
    huge = plain.clone()
    huge[:, 7] *= 30_000  # a massive activation
    return {
        "normal": plain,
        "one huge channel": huge,
        "heavy tails": plain**5,
        "tiny": plain * 1e-30,
        "large": plain / plain.abs().max() * torch.finfo(torch.float32).max,
        "bfloat16": plain.bfloat16(),
        "float16 of its whole range": (plain / plain.abs().max() * 65_504).half(),
        "one channel": plain[:, :1],
        "zeros but one": torch.eye(8, WIDTH),
    }


def _read(rows: torch.Tensor) -> torch.Tensor:
    """As a reader of the files sees them."""
    data = encoded(rows).numpy()
    bits, scale = data[:, :-SCALE_BYTES], np.ascontiguousarray(data[:, -SCALE_BYTES:]).view("<f4")
    return torch.from_numpy(unscaled(bits, scale))


def test_the_error_is_as_stated(subtests: pytest.Subtests) -> None:
    for name, rows in _rows().items():
        with subtests.test(name):
            numbers, read = rows.double(), _read(rows).double()
            largest = numbers.abs().amax(1, keepdim=True)
            apart = (read - numbers).abs()
            assert torch.isfinite(read).all()
            assert (apart <= torch.maximum(numbers.abs() * OF_NUMBER, largest * OF_ROW) * (1 + 1e-6)).all()
            assert (apart <= largest * AT_MOST).all()
            # the largest number of a row is itself, but for the rounding of float32
            assert torch.allclose(read.abs().amax(1, keepdim=True), largest, rtol=1e-6)
            assert not (read * numbers < 0).any(), "a sign changed"


def test_a_bound_is_tight_enough_to_be_the_error() -> None:
    rows = torch.linspace(-1, 1, 20_001)[None]
    apart = (_read(rows) - rows).abs().max()
    assert AT_MOST * 0.95 < apart <= AT_MOST


def test_rows_without_a_largest_number(subtests: pytest.Subtests) -> None:
    with subtests.test("zeros"):
        zeros = torch.zeros(3, WIDTH)
        assert torch.equal(_read(zeros), zeros)
    with subtests.test("below the least scale"):
        least = torch.full((1, WIDTH), 1e-40)
        assert (_read(least) - least).abs().max() <= torch.finfo(torch.float32).tiny
    for value in (float("nan"), float("inf"), -float("inf")):
        with subtests.test(str(value)):
            rows = torch.randn(3, WIDTH)
            rows[1, 5] = value
            assert torch.isfinite(scales(encoded(rows))).tolist() == [[True], [False], [True]]


def test_all_256_numbers_are_torchs() -> None:
    bits = torch.arange(256, dtype=torch.uint8)
    expected = bits.view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(unscaled(bits.numpy()[None], np.ones(1, np.float32))[0], expected)


def test_one_table_rules_all_names_of_dtypes() -> None:
    asked = {name for name in get_args(Dtype) if name != "model"}
    assert set(DTYPES) == asked <= set(BY_TORCH)
    for name, dtype in dtypes.DTYPES.items():
        kind = getattr(torch, dtype.torch)
        assert kind.itemsize == dtype.bits.itemsize
        assert DTYPE_NAMES[kind] == name or kind is torch.uint8
        assert read_as(name) == ("F32" if dtype.has_scales else name)
    wide = {name: row_bytes(BY_TORCH[name], 4096) for name in asked}
    assert wide["float8_e4m3fn"] == wide["float16"] / 2 + SCALE_BYTES
