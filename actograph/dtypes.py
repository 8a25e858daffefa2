"""The dtypes of tensors: their names, their bytes, and the numbers that readers get.

Rows of `float8_e4m3fn` (safetensors' F8_E4M3) have a scale each, a float32 beside them. A number is its 8
bits times the scale, and all readers return it as float32.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: bytes of the scale of a row
SCALE_BYTES = 4
#: largest finite number of float8_e4m3fn
F8_MAX = 448.0
#: follows the name of a hook in the name of the tensor of its scales
_SCALES = ".scale"


@dataclass(frozen=True, slots=True)
class TensorDtype:
    """One dtype.

    Attributes:
        name: safetensors'.
        torch: torch's.
        bits: numpy's dtype of the same bytes.
        read: name of the dtype in which readers return the numbers.
        has_scales: each row has a scale.
    """

    name: str
    torch: str
    bits: np.dtype[Any]
    read: str
    has_scales: bool = False


DTYPES: Mapping[str, TensorDtype] = {
    name: TensorDtype(name, torch, np.dtype(bits), read, has_scales=name == "F8_E4M3")
    for name, torch, bits, read in (
        ("BOOL", "bool", "?", "BOOL"),
        ("U8", "uint8", "u1", "U8"),
        ("I8", "int8", "i1", "I8"),
        ("F8_E4M3", "float8_e4m3fn", "u1", "F32"),
        ("F8_E5M2", "float8_e5m2", "u1", "F8_E5M2"),
        ("U16", "uint16", "<u2", "U16"),
        ("I16", "int16", "<i2", "I16"),
        ("F16", "float16", "<f2", "F16"),
        ("BF16", "bfloat16", "<u2", "BF16"),
        ("U32", "uint32", "<u4", "U32"),
        ("I32", "int32", "<i4", "I32"),
        ("F32", "float32", "<f4", "F32"),
        ("U64", "uint64", "<u8", "U64"),
        ("I64", "int64", "<i8", "I64"),
        ("F64", "float64", "<f8", "F64"),
    )
}
#: torch's name -> dtype
BY_TORCH: Mapping[str, TensorDtype] = {dtype.torch: dtype for dtype in DTYPES.values()}


def read_as(name: str) -> str:
    """Name of the dtype in which stored rows are read: F32 for those with scales, else their own."""
    return DTYPES[name].read


def row_bytes(dtype: TensorDtype, width: int) -> int:
    """Bytes of a stored row, its scale included."""
    return width * dtype.bits.itemsize + (SCALE_BYTES if dtype.has_scales else 0)


def scales_of(hook: str) -> str:
    """Name of the tensor [rows, 1] with the scales of a hook's rows."""
    return hook + _SCALES


def scaled_hook(name: str) -> str | None:
    """The hook whose scales a tensor of this name would have; None for other names."""
    return name.removesuffix(_SCALES) if name.endswith(_SCALES) else None


def _f8_numbers() -> NDArray[np.float32]:
    """The 256 numbers of float8_e4m3fn, by their bits: 4 of exponent, 3 of mantissa, no infinities."""
    bits = np.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    size = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    size[exponent * 8 + mantissa == 127] = np.nan
    return np.where(bits > 127, -size, size).astype(np.float32)


_F8_NUMBERS = _f8_numbers()


def unscaled(bits: NDArray[np.uint8], scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows [rows, width] of F8_E4M3 times their scales [rows] or [rows, 1], as float32."""
    return np.take(_F8_NUMBERS, bits) * scales.reshape(-1, 1)


def unscaled_bytes(bits: bytes, scales: bytes, width: int) -> bytes:
    """The same of bytes as they are stored."""
    rows = np.frombuffer(bits, np.uint8).reshape(-1, width)
    return unscaled(rows, np.frombuffer(scales, "<f4")).tobytes()
