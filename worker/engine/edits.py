"""Changes of activations: the arithmetic of each intervention.

A hook names a tensor, and a change of it is a change for everything that the model computes from it
afterwards. So the rows are written in place, at the first location that shows the tensor: other readers of
the tensor (the residual stream around a norm) see the change as well, which assigning a module's input would
not give.
"""

import torch
from torch import Tensor

from actograph.contract.interventions import Op
from worker.engine.requests import Edit


class Change:
    """The change that an intervention makes, of float32 [rows, width] to the same shape.

    Attributes:
        vector: float32 [width], on the CPU; None if the operation has none.

    Raises:
        ValueError: (constructor) the operation needs a vector.
    """

    def __init__(self, op: Op, coefficient: float, vector: Tensor | None) -> None:
        if vector is None and op not in ("zero", "scale"):
            raise ValueError(f"{op} needs a vector")
        self.op, self.coefficient, self.vector = op, coefficient, vector
        self._on: dict[torch.device, Tensor] = {}
        if op == "project_out" and vector is not None:
            exact = vector.to(torch.float64)
            vector = (exact / exact.norm()).to(torch.float32)
        elif vector is not None:
            vector = vector.to(torch.float32) * coefficient
        if vector is not None:
            self._on[vector.device] = vector

    def __call__(self, x: Tensor) -> Tensor:
        match self.op:
            case "zero":
                return torch.zeros_like(x)
            case "scale":
                return x * self.coefficient
            case "add":
                return x + self._beside(x)
            case "project_out":
                along = self._beside(x)
                # a sum per row, and not a matrix product: the same bits in any batch
                return x - self.coefficient * (x * along).sum(-1, keepdim=True) * along
            case _:
                return self._beside(x).expand_as(x)

    def _beside(self, x: Tensor) -> Tensor:
        """The vector on the device of `x`, copied there on first use."""
        found = self._on.get(x.device)
        if found is None:
            found = self._on[x.device] = next(iter(self._on.values())).to(x.device)
        return found


def change_of(edit: Edit) -> Change:
    """The change that an edit makes. Raises ValueError if the operation needs a vector."""
    return Change(edit.op, edit.coefficient, edit.vector)


def changed(rows: Tensor, change: Change) -> Tensor:
    """[rows, ...] after the change, in the dtype and shape that it had."""
    flat = rows.reshape(rows.shape[0], -1).to(torch.float32)
    return change(flat).reshape(rows.shape).to(rows.dtype)
