"""Columns and dtype of kept rows, and indices of rows on a device."""

from collections.abc import Mapping, Sequence
from typing import get_args

import torch

from actograph.contract.errors import CaptureFailed
from actograph.contract.specs import Dtype
from actograph.dtypes import F8_MAX, SCALE_BYTES


class Columns:
    """A choice of features.

    Args:
        chosen: how many of the first ones, their numbers in the order in which they are stored, or None for
            all.
    """

    def __init__(self, chosen: int | tuple[int, ...] | None) -> None:
        self._chosen = chosen
        self.all = chosen is None
        self._on_device: dict[torch.device, torch.Tensor] = {}

    def width(self, width: int, hook: str) -> int:
        """Number of columns kept of `width`.

        Raises:
            CaptureFailed: the hook has too few columns.
        """
        if self._chosen is None:
            return width
        if isinstance(self._chosen, int):
            needed = kept = self._chosen
        else:
            needed, kept = max(self._chosen) + 1, len(self._chosen)
        if needed > width:
            raise CaptureFailed(
                f"{hook} has {width} features (0 to {width - 1}); feature {needed - 1} was asked for"
            )
        return kept

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The kept columns of [..., width]: a view of the first ones, a copy of chosen ones."""
        if self._chosen is None:
            return tensor
        if isinstance(self._chosen, int):
            return tensor[..., : self._chosen]
        index = self._on_device.get(tensor.device)
        if index is None:
            index = index_on(self._chosen, tensor.device)
            self._on_device[tensor.device] = index
        return tensor.index_select(-1, index)


def index_on(numbers: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """An index of int64 on a device, for which the host does not wait."""
    index = torch.tensor(numbers, dtype=torch.int64)
    if device.type != "cuda":
        return index.to(device)
    pinned = torch.empty(index.shape, dtype=torch.int64, pin_memory=True)
    return pinned.copy_(index).to(device, non_blocking=True)


#: dtypes of stored rows by name; absent: as the model computes them
DTYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, name) for name in get_args(Dtype) if name != "model"
}
#: rows of it have a scale each, and are kept as bytes: `encoded`
SCALED = torch.float8_e4m3fn
#: the largest number of a row becomes a little more than 448, which rounds to 448: so 448 times the scale is
#: never more than that number, and is finite
_PER_SCALE = (1 - 2**-22) / F8_MAX
#: numbers that are encoded at once: they take 8 bytes each meanwhile
_AT_ONCE = 1 << 22
_LEAST_SCALE = torch.finfo(torch.float32).tiny


def encoded(rows: torch.Tensor) -> torch.Tensor:
    """Rows [tokens, width] as bytes [tokens, width + 4]: 8-bit floats, then their scale as float32.

    The scale is the row's largest magnitude / 448, and 2**-126 at least. It is not finite if a number is not.
    """
    count, width = rows.shape
    made = torch.empty(count, width + SCALE_BYTES, dtype=torch.uint8, device=rows.device)
    at_once = max(1, _AT_ONCE // width)
    for part, own in zip(torch.split(rows, at_once), torch.split(made, at_once), strict=True):
        numbers = part.float()
        scale = (numbers.abs().amax(-1, keepdim=True) * _PER_SCALE).clamp_min(_LEAST_SCALE)
        own[:, :width].view(SCALED).copy_(numbers / scale)
        own[:, width:].copy_(scale.view(torch.uint8))
    return made


def decoded(rows: torch.Tensor) -> torch.Tensor:
    """Numbers of `encoded` rows [.., width + 4], as float32."""
    return rows[..., :-SCALE_BYTES].contiguous().view(SCALED).float() * scales(rows)


def scales(rows: torch.Tensor) -> torch.Tensor:
    """Scales [.., 1] of `encoded` rows."""
    return rows[..., -SCALE_BYTES:].contiguous().view(torch.float32)


def reduced_dtype(asked: str) -> torch.dtype | None:
    """Dtype of reduced rows of a capture; None: as the model computes them."""
    return torch.float32 if DTYPES.get(asked) is SCALED else DTYPES.get(asked)


def stored_dtype(source: torch.dtype, asked: torch.dtype | None) -> torch.dtype:
    """Dtype in which rows are stored; integers (expert indices) stay integers."""
    return asked if asked is not None and source.is_floating_point else source
