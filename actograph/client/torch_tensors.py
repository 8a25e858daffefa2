"""Stored bytes as torch tensors, in the dtype that the model computed them in."""

from collections.abc import Sequence
from typing import Any

from actograph import tensor_files
from actograph.client.optional import package
from actograph.contract.errors import StoreDamaged

_FLOAT8 = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_NAMES = {stored: name for name, stored in tensor_files.DTYPE_NAMES.items()} | _FLOAT8


def tensor(dtype: str, shape: Sequence[int], data: bytes) -> Any:
    """A `torch.Tensor` of the stored bytes (`dtype` is a safetensors name), on the CPU.

    Raises:
        PackageMissing: torch is not installed.
        StoreDamaged: a dtype that torch does not have.
    """
    torch = package("torch", "a torch tensor")
    kind = getattr(torch, _NAMES.get(dtype, ""), None)
    if kind is None:
        raise StoreDamaged(f"torch has no dtype {dtype}")
    if not data:
        return torch.empty(tuple(shape), dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(tuple(shape))
