"""Interventions: the arithmetic of each, and which tokens of a request it changes.

A hook names a tensor, and a change of it is a change for everything that the model computes from it
afterwards. So the rows are written in place, at the first location that shows the tensor: other readers of
the tensor (the residual stream around a norm) see the change as well, which assigning a module's input would
not give.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from actograph.contract.row_selection import NamedPositions, TokenRange
from worker.engine.chosen_tokens import ChosenTokens
from worker.engine.messages import Edit
from worker.engine.model.host_memory import to_device

Change = Callable[[Tensor], Tensor]  # float32 [rows, width] -> the same shape


class Write(NamedTuple):
    """One edit of some tokens of a request.

    Attributes:
        location: where it is written.
        order: its place among the request's edits.
        change: the same object for equal edits, which are made together.
        tokens: token numbers.
    """

    location: str
    order: int
    change: Change
    tokens: Sequence[int]


class SlotEdits:
    """Edits of one request, in the order in which they apply.

    Args:
        edits: location, order, change and tokens of each.
    """

    def __init__(self, edits: Sequence[tuple[str, int, Change, ChosenTokens]]) -> None:
        self._edits = edits

    def __bool__(self) -> bool:
        return bool(self._edits)

    def writes(self, start: int, stop: int) -> list[Write]:
        """Changes of tokens `start` to `stop - 1`."""
        made = [
            Write(location, order, change, chosen.of(start, stop))
            for location, order, change, chosen in self._edits
        ]
        return [write for write in made if write.tokens]


def content_of(edit: Edit) -> tuple[str, float, bytes | None]:
    """Key of edits that make equal changes."""
    return edit.op, edit.coefficient, None if edit.vector is None else edit.vector.tobytes()


def likeness_of(edit: Edit) -> tuple[tuple[str, float, bytes | None], str, NamedPositions | TokenRange]:
    """Key of edits without a rule that change equal tokens alike."""
    return content_of(edit), edit.hook, edit.positions


def change_of(edit: Edit, devices: Sequence[torch.device]) -> Change:
    """The change that an edit makes.

    Args:
        devices: where it may be made; the vector is copied to each.

    Raises:
        ValueError: the operation needs a vector.
    """
    coefficient = edit.coefficient
    if edit.op == "zero":
        return _zero
    if edit.op == "scale":
        return lambda x: x * coefficient
    if edit.vector is None:
        raise ValueError(f"{edit.op} needs a vector")
    if edit.op == "project_out":
        exact = torch.from_numpy(edit.vector.astype("f8"))
        direction = _Vector((exact / exact.norm()).to(torch.float32), devices)

        # a sum per row, and not a matrix product: the same bits in any batch
        def without(x: Tensor) -> Tensor:
            along = direction.beside(x)
            return x - coefficient * (x * along).sum(-1, keepdim=True) * along

        return without
    vector = _Vector(torch.from_numpy(edit.vector.copy()) * coefficient, devices)
    if edit.op == "add":
        return lambda x: x + vector.beside(x)
    return lambda x: vector.beside(x).expand_as(x)


def _zero(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


class _Vector:
    """A vector with a copy on each device, for which no pass waits."""

    def __init__(self, vector: Tensor, devices: Sequence[torch.device]) -> None:
        copies = [to_device(vector.numpy(), device) for device in devices]
        self._on = {copy.device: copy for copy in copies}

    def beside(self, x: Tensor) -> Tensor:
        found = self._on.get(x.device)
        if found is None:  # an offloaded module computes somewhere else
            found = self._on[x.device] = next(iter(self._on.values())).to(x.device)
        return found


def changed(rows: Tensor, change: Change) -> Tensor:
    """[rows, ...] after the change, in the dtype and shape that it had."""
    flat = rows.reshape(rows.shape[0], -1).to(torch.float32)
    return change(flat).reshape(rows.shape).to(rows.dtype)
