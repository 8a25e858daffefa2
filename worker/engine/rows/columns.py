"""The columns of a row that are kept, taken on the device before anything is copied."""

import torch

from actograph.contract.errors import CaptureFailed


class Columns:
    """A choice of features.

    Args:
        chosen: a slice from 0, column numbers in the order in which they are stored, or None for all.
    """

    def __init__(self, chosen: slice | tuple[int, ...] | None) -> None:
        self._chosen = chosen
        self._on_device: dict[torch.device, torch.Tensor] = {}

    @property
    def all(self) -> bool:
        return self._chosen is None

    def width(self, width: int, hook: str) -> int:
        """How many columns are kept of `width`.

        Raises:
            CaptureFailed: the hook has fewer than were asked for.
        """
        if self._chosen is None:
            return width
        if isinstance(self._chosen, slice):
            needed = kept = self._chosen.stop
        else:
            needed, kept = max(self._chosen) + 1, len(self._chosen)
        if needed > width:
            raise CaptureFailed(
                f"{hook} has {width} features (0 to {width - 1}); feature {needed - 1} was asked for"
            )
        return int(kept)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The kept columns of [..., width]: a view of a slice, a copy of chosen columns."""
        if self._chosen is None:
            return tensor
        if isinstance(self._chosen, slice):
            return tensor[..., self._chosen]
        index = self._on_device.get(tensor.device)
        if index is None:
            index = torch.tensor(self._chosen, device=tensor.device)
            self._on_device[tensor.device] = index
        return tensor.index_select(-1, index)
