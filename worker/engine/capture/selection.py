"""Columns and dtype of kept rows, and indices of rows on a device."""

from collections.abc import Sequence

import torch

from actograph.contract.errors import CaptureFailed


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
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def stored_dtype(source: torch.dtype, asked: torch.dtype | None) -> torch.dtype:
    """Dtype in which rows are stored; integers (expert indices) stay integers."""
    return asked if asked is not None and source.is_floating_point else source
