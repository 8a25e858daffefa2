"""Tensors of rows on the host, as the data that leaves the engine: the same memory, no copy."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actograph.dtypes import DTYPES
from worker.engine.messages import Rows

#: safetensors' names of dtypes
DTYPE_NAMES = {
    **{getattr(torch, dtype.torch): dtype.name for dtype in DTYPES.values()},
    torch.uint8: "F8_E4M3",  # bytes are rows with their scale, see `selection.encoded`
}


def rows_of(
    pieces: Sequence[Tensor],
    first_row: int = 0,
    tokens: tuple[int, ...] | None = None,
    *,
    over: int | None = None,
    finite: bool = False,
) -> Rows:
    """Rows of one hook.

    Args:
        pieces: [rows, width] each, on the CPU; one at least.
    """
    dtype = DTYPE_NAMES[pieces[0].dtype]
    return Rows(first_row, tuple(map(_bytes_of, pieces)), dtype, tokens, over, finite)


def _bytes_of(piece: Tensor) -> NDArray[np.uint8]:
    size = piece.shape[1] * piece.dtype.itemsize
    if not len(piece):
        return np.empty((0, size), np.uint8)
    array: NDArray[np.uint8] = piece.contiguous().view(torch.uint8).numpy()
    return array.reshape(len(piece), size)
