"""Safetensors files in memory."""

import math
from collections.abc import Mapping, Sequence

from actograph import tensor_files


def encode_tensors(
    tensors: Mapping[str, tuple[str, Sequence[int], bytes]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return a safetensors file for name -> (dtype, shape, raw bytes).

    Raises:
        ValueError: the bytes do not fit dtype and shape.
    """
    order = sorted(tensors, key=lambda name: -tensor_files.itemsize(tensors[name][0]))
    for name in order:
        dtype, shape, data = tensors[name]
        if len(data) != math.prod(shape) * tensor_files.itemsize(dtype):
            raise ValueError(f"tensor {name}: {len(data)} bytes do not make {dtype} {list(shape)}")
    header = tensor_files.encode_header(
        [(name, tensors[name][0], tensors[name][1]) for name in order], metadata
    )
    return b"".join([header, *(tensors[name][2] for name in order)])
