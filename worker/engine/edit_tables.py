"""Edits as data, for passes of fixed shape.

What each request changes stands in tables that stay where they are: a row for each request, with its vector
and coefficient. A pass brings, for each of its rows and each place of an edit, which kind of change is made,
if any. So the calls of a pass depend on the places and kinds of edits alone, whatever the vectors,
coefficients and tokens are, and a CUDA graph can replay it.

A place is a stage: the first edit of a request at a location, or the second, and so on. Each kind of change
is computed for all rows, by the arithmetic of `edits.Change`, and taken where it is made. A row that is not
changed keeps its bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from actograph.contract.interventions import EditOp
from worker.engine.capture.budget import DeviceMemory, Piece
from worker.engine.edits import Change, SlotEdits, Write, row_norms
from worker.engine.locations import ModelHooks
from worker.engine.model.host_memory import to_device

#: kinds of changes by the number that a pass brings; 0: none. A tensor of zeros replaces, too.
_KINDS = ("", "replace", "scale", "add", "project_out", "add_row_norm")
_KIND_OF = {"zero": 1} | {name: number for number, name in enumerate(_KINDS) if name}
#: rows of a table that belong to no request: an example of each kind of change
_EXAMPLES = len(_KINDS) - 1
#: stages as wide as the residual stream for which there is memory, at least, unless it takes more than that
_LEAST_STAGES = 16
_MOST_STAGES = 128
#: bytes of all tables, at most
_MOST_BYTES = 256 << 20


@dataclass(slots=True, eq=False)
class Stage:
    """A place of an edit.

    Attributes:
        location: where it is written.
        place: how many edits of a request come before it at this location.
        number: of its row among the coefficients and kinds.
        serial: names it for ever; a later stage may have its number.
        vectors: float32 [table rows, width].
        users: live requests by kind of change.
        open: kinds that passes compute, whoever takes part; ascending.
    """

    location: str
    place: int
    number: int
    serial: int
    piece: Piece
    vectors: Tensor
    users: Counter[int] = field(default_factory=Counter)
    open: tuple[int, ...] = ()


class EditRows(NamedTuple):
    """A request's edits in the tables.

    Attributes:
        row: of the tables.
        stages: by the order of its edits: the stage and the kind of change.
    """

    row: int
    stages: Mapping[int, tuple[Stage, int]]


def table_bytes(hooks: ModelHooks, slots: int) -> int:
    """Bytes of the tables: edits of the residual stream in each layer, for all requests."""
    structure = hooks.structure
    stages = max(_LEAST_STAGES, structure.num_layers)
    return min(_MOST_BYTES, stages * 4 * (slots + _EXAMPLES) * structure.hidden_size)


class EditTables:
    """Tables of all requests of a model.

    Args:
        slots: requests at once, at most.

    Attributes:
        opened: number of kinds of changes that have opened.
        refused: why the last request that is not in the tables is not; None if all were.
    """

    def __init__(self, hooks: ModelHooks, slots: int) -> None:
        self._hooks, self._slots = hooks, slots
        self._device = device = hooks.model.device
        self._memory = DeviceMemory(device, table_bytes(hooks, slots))
        self._stages: dict[tuple[str, int], Stage] = {}
        self._coefficients = torch.zeros(_MOST_STAGES, slots + _EXAMPLES, device=device)
        #: of each row of a pass: its row of the tables, and its kind of change at each stage
        self._numbers = torch.zeros(1 + _MOST_STAGES, slots, dtype=torch.int64, device=device)
        self._host = np.zeros((1 + _MOST_STAGES, slots), np.int64)
        self.opened = self._made = 0
        self.refused: str | None = None

    def open(self, row: int, edits: SlotEdits) -> EditRows | None:
        """Write a request's edits into the tables; None if a pass cannot make them from there.

        Args:
            row: of the tables, which no other request has.
        """
        self.refused = None
        places, taken = Counter[str](), dict[int, tuple[Stage, int]]()
        if any(change.columns is not None for _, _, change in edits.changes):
            self.refused = "the tables hold changes of whole rows, and these are of single heads"
            return None
        for location, order, change in edits.changes:
            stage = self._stage(location, places[location], taken)
            if stage is None:
                return None
            places[location] += 1
            taken[order] = stage, _KIND_OF[change.op]
            self._write(stage, row, change)
        for stage, kind in taken.values():
            stage.users[kind] += 1
            if kind not in stage.open:
                stage.open = tuple(sorted((*stage.open, kind)))
                self.opened += 1
        return EditRows(row, taken)

    def close(self, rows: EditRows) -> None:
        """End a request. Its stages stay until others need their memory."""
        for stage, kind in rows.stages.values():
            stage.users[kind] -= 1

    def close_idle(self) -> None:
        """Close kinds of changes that no request makes now."""
        for stage in self._stages.values():
            stage.open = tuple(kind for kind in stage.open if stage.users[kind] > 0)

    @property
    def open_stages(self) -> list[Stage]:
        """Stages at which passes change rows, those of a location in the order of a request's edits."""
        return sorted((one for one in self._stages.values() if one.open), key=lambda one: one.place)

    @property
    def key(self) -> tuple[object, ...]:
        """Identity of the changes that passes compute."""
        stages = sorted(self._stages.values(), key=lambda one: one.serial)
        return tuple((one.serial, one.open) for one in stages if one.open)

    def fill(self, rows: Sequence[tuple[EditRows | None, Sequence[Write]]]) -> None:
        """Bring what a pass changes: for each of its rows, the tables' and the changes of its token."""
        self._host.fill(0)
        for i, (own, writes) in enumerate(rows):
            if own is None:
                continue
            self._host[0, i] = own.row
            for write in writes:
                stage, kind = own.stages[write.order]
                self._host[1 + stage.number, i] = kind
        self._numbers.copy_(to_device(self._host.copy(), self._device))

    @property
    def trials(self) -> int:
        """Trials that show every kind of change that is open, and none."""
        return max((len(one.open) for one in self._stages.values()), default=0) + 1

    def try_out(self, number: int, rows: int) -> Iterator[tuple[Stage, Change]]:
        """Let a pass make examples of changes in all of its rows.

        Yields: the same changes, by stage.
        """
        self._host.fill(0)
        for stage in self.open_stages:
            if number < self.trials - 1:
                kind = stage.open[number % len(stage.open)]
                self._host[0, :rows] = self._slots + number
                self._host[1 + stage.number, :rows] = kind
                example = self._example(stage, kind)
                self._write(stage, self._slots + number, example)
                yield stage, example
        self._numbers.copy_(to_device(self._host.copy(), self._device))

    def change(self, stage: Stage, rows: Tensor) -> None:
        """Change rows [rows of the pass, ...] of a stage's location in place."""
        count = len(rows)
        flat = rows.reshape(count, -1)
        x, which = flat.to(torch.float32), self._numbers[0, :count]
        kinds = self._numbers[1 + stage.number, :count, None]
        coefficient = self._coefficients[stage.number].index_select(0, which)[:, None]
        vector = stage.vectors.index_select(0, which)
        made = flat
        for kind in stage.open:
            match _KINDS[kind]:
                case "replace":
                    new = vector
                case "scale":
                    new = x * coefficient
                case "add":
                    new = x + vector
                case "add_row_norm":
                    new = x + coefficient * row_norms(x) * vector
                case _:
                    new = x - coefficient * (x * vector).sum(-1, keepdim=True) * vector
            made = torch.where(kinds == kind, new.to(flat.dtype), made)
        rows.copy_(made.view(rows.shape))

    def _stage(self, location: str, place: int, taken: Mapping[int, tuple[Stage, int]]) -> Stage | None:
        stage = self._stages.get((location, place))
        if stage is not None:
            return stage
        info = self._hooks.structure.module_tensors[location]
        if not info.dtype.startswith(("float", "bfloat")):
            self.refused = f"{location} holds {info.dtype}"
            return None
        mine = [one for one, _ in taken.values()]
        shape = self._slots + _EXAMPLES, self._hooks.widths[location]
        numbers = {one.number for one in self._stages.values()}
        while (
            len(numbers) == _MOST_STAGES
            or (piece := self._memory.piece(4 * shape[0] * shape[1], self._device)) is None
        ):
            idle = next(
                (one for one in self._stages.values() if not one.users.total() and one not in mine), None
            )
            if idle is None:
                self.refused = f"the tables of edits have no room for {location}"
                return None
            del self._stages[idle.location, idle.place]
            self._memory.remove(idle.piece)
            numbers.discard(idle.number)
        number = next(number for number in range(_MOST_STAGES) if number not in numbers)
        self._made += 1
        vectors = piece.tensor(shape, torch.float32)
        vectors.zero_()  # they are read for every row, also of requests without this stage
        stage = Stage(location, place, number, self._made, piece, vectors)
        self._stages[location, place] = stage
        return stage

    def _write(self, stage: Stage, row: int, change: Change) -> None:
        factor = None if change.op == "zero" else change.factor(self._device)
        if factor is None:
            stage.vectors[row].zero_()
        else:
            stage.vectors[row].copy_(factor)
        self._coefficients[stage.number, row].fill_(change.coefficient)

    def _example(self, stage: Stage, kind: int) -> Change:
        width = stage.vectors.shape[1]
        vector = np.cos(np.arange(width, dtype=np.float32)) / np.float32(width) ** 0.5
        return Change(cast(EditOp, _KINDS[kind]), 0.5, vector.astype(np.float32), [self._device])
