"""Changes of activations: the arithmetic of each intervention.

A hook names a tensor, and a change of it is a change for everything that the model computes from it
afterwards. So the rows are written in place, at the first location that shows the tensor: other readers of
the tensor (the residual stream around a norm) see the change as well, which assigning a module's input would
not give.
"""

from collections.abc import Callable

import torch

from worker.engine.requests import Edit

Change = Callable[[torch.Tensor], torch.Tensor]  # float32 [rows, width] -> the same shape


class _Vector:
    """A vector, copied to each device on first use."""

    def __init__(self, vector: torch.Tensor) -> None:
        self._on = {vector.device: vector}

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        found = self._on.get(x.device)
        if found is None:
            found = self._on[x.device] = next(iter(self._on.values())).to(x.device)
        return found


def change_of(edit: Edit) -> Change:
    """The change that an edit makes.

    Raises:
        ValueError: the operation needs a vector.
    """
    coefficient = edit.coefficient
    if edit.op == "zero":
        return torch.zeros_like
    if edit.op == "scale":
        return lambda x: x * coefficient
    if edit.vector is None:
        raise ValueError(f"{edit.op} needs a vector")
    if edit.op == "project_out":
        exact = edit.vector.to(torch.float64)
        direction = _Vector((exact / exact.norm()).to(torch.float32))

        # a sum per row, and not a matrix product: the same bits in any batch
        def without(x: torch.Tensor) -> torch.Tensor:
            along = direction.beside(x)
            return x - coefficient * (x * along).sum(-1, keepdim=True) * along

        return without
    vector = _Vector(edit.vector.to(torch.float32) * coefficient)
    if edit.op == "add":
        return lambda x: x + vector.beside(x)
    return lambda x: vector.beside(x).expand_as(x)


def changed(rows: torch.Tensor, change: Change) -> torch.Tensor:
    """[rows, ...] after the change, in the dtype and shape that it had."""
    flat = rows.reshape(rows.shape[0], -1).to(torch.float32)
    return change(flat).reshape(rows.shape).to(rows.dtype)
