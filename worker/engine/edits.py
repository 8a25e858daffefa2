"""Interventions: the arithmetic of each, and which tokens of a request it changes.

A hook names a tensor, and a change of it is a change for everything that the model computes from it
afterwards. So the rows are written in place, at the first location that shows the tensor: other readers of
the tensor (the residual stream around a norm) see the change as well, which assigning a module's input would
not give.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actograph.contract.interventions import EditOp
from actograph.contract.row_selection import NamedPositions, TokenRange
from worker.engine.chosen_tokens import ChosenTokens
from worker.engine.messages import Edit, ReadoutLimit
from worker.engine.model.host_memory import to_device

#: numbers that a change takes at once: it makes a few float32 copies of them
CHANGED_NUMBERS = 1 << 24


class Change:
    """The change that an intervention makes, of float32 [rows, width] to the same shape.

    Args:
        vector: float32 [width]; of a replacement also [rows, width], one for each row that it changes.
        devices: where it may be made; the vector is copied to each, so that no pass waits for it.
        columns: that are changed, for which alone the vector has numbers; None: all.

    Raises:
        ValueError: the operation needs a vector.
    """

    def __init__(
        self,
        op: EditOp,
        coefficient: float,
        vector: NDArray[np.float32] | None,
        devices: Sequence[torch.device],
        *,
        columns: Sequence[int] | None = None,
    ) -> None:
        self.op, self.coefficient, self.vector, self.columns = op, coefficient, vector, columns
        self._on: dict[torch.device, Tensor] = {}
        self._places: dict[torch.device, Tensor] = {}
        if columns is not None:
            copies = [to_device(np.array(columns, np.int64), device) for device in devices]
            self._places = {copy.device: copy for copy in copies}
        if vector is None:
            if op not in ("zero", "scale"):
                raise ValueError(f"{op} needs a vector")
            return
        if op in ("project_out", "add_row_norm"):
            exact = torch.from_numpy(vector.astype("f8"))
            factor = (exact / exact.norm()).to(torch.float32)
        else:
            factor = torch.from_numpy(vector.copy()) * coefficient
        copies = [to_device(factor.numpy(), device) for device in devices]
        self._on = {copy.device: copy for copy in copies}

    def __call__(self, x: Tensor) -> Tensor:
        if self.columns is None:
            return self._made(x)
        places = self._places.get(x.device)
        if places is None:  # as in `factor`
            places = self._places[x.device] = next(iter(self._places.values())).to(x.device)
        return x.index_copy(1, places, self._made(x.index_select(1, places)))

    def _made(self, x: Tensor) -> Tensor:
        match self.op:
            case "zero":
                return torch.zeros_like(x)
            case "scale":
                return x * self.coefficient
            case "add":
                return x + self._beside(x)
            case "add_row_norm":
                along = self._beside(x)
                return x + self.coefficient * row_norms(x) * along
            case "project_out":
                along = self._beside(x)
                # a sum per row, and not a matrix product: the same bits in any batch
                return x - self.coefficient * (x * along).sum(-1, keepdim=True) * along
            case _:
                return self._beside(x).expand_as(x)

    def factor(self, device: torch.device) -> Tensor | None:
        """Float32 [width] that rows are added to, replaced or projected with; None for other operations."""
        if not self._on:
            return None
        found = self._on.get(device)
        if found is None:  # an offloaded module computes somewhere else
            found = self._on[device] = next(iter(self._on.values())).to(device)
        return found

    def _beside(self, x: Tensor) -> Tensor:
        """The factor on the device of `x`."""
        factor = self.factor(x.device)
        assert factor is not None
        return factor


#: a location's place among all, a change, and the places of the tokens in the tensor that it changes
PlannedChange = tuple[int, Change, Sequence[int]]


def row_norms(x: Tensor) -> Tensor:
    """Euclidean norm of each row, [rows, 1]: a sum per row, with the same bits in any batch."""
    return (x * x).sum(-1, keepdim=True).sqrt()


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
        after: limits of readouts by the order of the edits that wait for them.
    """

    def __init__(
        self,
        edits: Sequence[tuple[str, int, Change, ChosenTokens]],
        after: Mapping[int, ReadoutLimit] = MappingProxyType({}),
    ) -> None:
        self._edits, self._after = edits, after
        #: first token of each edit that has waited
        self._begins: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._edits)

    @property
    def changes(self) -> list[tuple[str, int, Change]]:
        """Location, order and change of each."""
        return [(location, order, change) for location, order, change, _ in self._edits]

    def writes(self, start: int, stop: int) -> list[Write]:
        """Changes of tokens `start` to `stop - 1`."""
        made = [
            Write(location, order, change, self._begun(order, chosen.of(start, stop)))
            for location, order, change, chosen in self._edits
        ]
        return [write for write in made if write.tokens]

    def begin(self, values: Mapping[str, float], token: int) -> None:
        """Begin the edits whose limits are crossed.

        Args:
            values: of readouts.
            token: the first that they change.
        """
        for order, limit in self._after.items():
            if order not in self._begins and limit.name in values and limit.crossed(values[limit.name]):
                self._begins[order] = token

    def _begun(self, order: int, tokens: Sequence[int]) -> Sequence[int]:
        """The tokens that an edit does not wait for any more."""
        if order not in self._after:
            return tokens
        first = self._begins.get(order)
        return () if first is None else [token for token in tokens if token >= first]


#: operation, coefficient, vector and columns
Content = tuple[str, float, bytes | None, tuple[int, ...] | None]


def content_of(edit: Edit) -> Content:
    """Key of edits that make equal changes."""
    return edit.op, edit.coefficient, None if edit.vector is None else edit.vector.tobytes(), edit.columns


def likeness_of(edit: Edit) -> tuple[Content, str, NamedPositions | TokenRange]:
    """Key of edits without a rule that change equal tokens alike."""
    return content_of(edit), edit.hook, edit.positions


def changed(rows: Tensor, change: Change) -> Tensor:
    """[rows, ...] after the change, in the dtype and shape that it had."""
    flat = rows.reshape(rows.shape[0], -1).to(torch.float32)
    return change(flat).reshape(rows.shape).to(rows.dtype)
