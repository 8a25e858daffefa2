"""Stored bytes as torch tensors in their stored dtype."""

from collections.abc import Sequence
from typing import Any

from actograph import tensor_files
from actograph.client.optional import package
from actograph.contract.errors import StoreDamaged

_FLOAT8 = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_NAMES = {stored: name for name, stored in tensor_files.DTYPE_NAMES.items()} | _FLOAT8


def tensor(dtype: str, shape: Sequence[int], data: bytes) -> Any:
    """Return the stored bytes as a `torch.Tensor` on the CPU; `dtype` is a safetensors name.

    Raises:
        PackageMissing: torch is not installed.
        StoreDamaged: torch has no such dtype.
    """
    torch = package("torch", "a torch tensor")
    kind = getattr(torch, _NAMES.get(dtype, ""), None)
    if kind is None:
        raise StoreDamaged(f"torch has no dtype {dtype}")
    if not data:
        return torch.empty(tuple(shape), dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(tuple(shape))
