"""Edits and copies at each location of a pass: edits first, then one copy per plan.

Requests with equal plans share the copy: a point's rows of all of them go to a staging tensor at once, and
after the pass each request takes its slice of all points at once. So a pass makes points + requests copies,
not points * requests; on a GPU the staging tensor is what crosses to the host, once per pass.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from worker.engine.capture.modules import tokens_first
from worker.engine.capture.parts import Part, Write, in_pack
from worker.engine.capture.pool import BLOCK, Budget, Layout, Pool, layouts_of
from worker.engine.capture.record import Record
from worker.engine.capture.selection import Columns
from worker.engine.edits import Change, changed
from worker.engine.locations import ModelHooks
from worker.engine.runs import CapturePlan


class _Stage:
    """Rows of all requests with one layout in one pass."""

    def __init__(self, layout: Layout, columns: Columns, device: torch.device) -> None:
        self.layout, self._columns, self._device = layout, columns, device
        self._held: list[Tensor] = []
        self.places: list[int] = []  # of the staged rows in the tensors of the pass
        self._index: dict[torch.device, Tensor] = {}
        self.owners: list[tuple[Record, Sequence[int], int]] = []  # token numbers, first staged row

    @property
    def rows(self) -> int:
        """Rows that have room."""
        return self._held[0].shape[1] if self._held else 0

    def resize(self, rows: int) -> None:
        """Have memory for `rows` rows; what it costs is counted by the caller."""
        self._held = []  # before the new memory is taken
        if rows:
            self._held = self.layout.staging(rows, self._device)

    def begin(self, padded: int) -> None:
        """Begin a pass; one of `padded` rows stages all of them."""
        self.places, self.owners = list(range(padded)), []
        self._index.clear()

    @property
    def memory(self) -> tuple[object, ...]:
        """Identity of the stage and of the memory that it copies to."""
        return (id(self), *((held.data_ptr(), held.shape) for held in self._held))

    def staged(self) -> list[Tensor]:
        """The rows of this pass, of each group [points, rows, width]."""
        return [held[:, : len(self.places)] for held in self._held]

    def take(self, group: int, point: int, rows: Tensor) -> None:
        """Copy a point's rows [tokens, width]."""
        own = self._held[group][point, : len(self.places)]
        rows = self._columns.of(rows)
        if len(self.places) == len(rows):
            own.copy_(rows)
            return
        if rows.device not in self._index:
            self._index[rows.device] = torch.tensor(self.places, device=rows.device)
        own.copy_(rows.index_select(0, self._index[rows.device]))

    def to_host(self) -> list[Tensor]:
        """Begin to copy the rows to pinned memory; on a CPU they are where they should be."""
        if self._device.type == "cpu":
            return self.staged()
        return [
            torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True).copy_(rows, non_blocking=True)
            for rows in self.staged()
        ]

    def end(self, host: Sequence[Tensor]) -> Iterator[tuple[Record, Exception]]:
        """Give each request its rows; yields those that could not take them."""
        for record, tokens, at in self.owners:
            try:
                record.add(self.layout, tokens, [rows[:, at : at + len(tokens)] for rows in host])
            except Exception as error:  # noqa: BLE001 (it fails this request alone)
                yield record, error


@dataclass(slots=True, eq=False)
class _Shared:
    """Stages of one plan and the live requests that have it."""

    stages: list[_Stage]
    number: int  # in the order in which plans came
    users: int = 0


@dataclass(slots=True)
class _Site:
    """One location in a pass."""

    tail: bool
    reads: list[tuple[_Stage, int, int]] = field(default_factory=list)  # stage, group, point
    writes: dict[tuple[int, tuple[object, ...]], tuple[Change, list[int]]] = field(default_factory=dict)


class Taps:
    """Edits and captures of one pass after the other. Forwards call `at`.

    Args:
        budget: of the device's memory, for staging.
        rows: rows of the largest pass, for which a GPU has room from the start if it can.

    Attributes:
        stages: those that take rows in this pass.
    """

    def __init__(self, hooks: ModelHooks, budget: Budget, pool: Pool, *, rows: int = BLOCK) -> None:
        self._hooks, self._budget, self._pool = hooks, budget, pool
        self._on_gpu = hooks.model.device.type == "cuda"
        self._rows = max(rows, BLOCK) if self._on_gpu else BLOCK
        self._order = {location: i for i, location in enumerate(hooks.structure.module_locations)}
        self._plans: dict[tuple[object, ...], _Shared] = {}  # the one that ended longest ago first
        self._opened = 0
        self._sites: dict[str, _Site] = {}
        self._counts = {False: 0, True: 0}  # rows at a location in this pass, by `tail`
        self._padded = 0
        self._copied: list[tuple[_Stage, list[Tensor]]] = []
        self.stages: list[_Stage] = []

    def open(self, plan: CapturePlan) -> list[Layout] | None:
        """Begin a request with this plan; returns its layouts, None if staging has no room.

        Raises:
            UnknownHook, CaptureFailed: see `layouts_of`.
        """
        shared = self._plans.get(plan.copies)
        if shared is None:
            columns, device = Columns(plan.shaping.columns), self._hooks.model.device
            stages = [_Stage(layout, columns, device) for layout in layouts_of(self._hooks, plan)]
            self._opened += 1
            shared = _Shared(stages, self._opened)
            # room for the largest pass, if there is so much: memory that stays keeps its graphs
            if not any(self._sized(stages, rows) for rows in dict.fromkeys((self._rows, BLOCK))):
                return None
            self._plans[plan.copies] = shared
        shared.users += 1
        return [stage.layout for stage in shared.stages]

    def close(self, plan: CapturePlan) -> None:
        """End a request with this plan. On a GPU its memory stays until another plan needs it."""
        shared = self._plans.pop(plan.copies)
        shared.users -= 1
        self._plans[plan.copies] = shared
        if not shared.users and not self._on_gpu:
            self._forget(plan.copies)

    def clear(self) -> None:
        """Free the memory of plans without requests."""
        for key in [key for key, shared in self._plans.items() if not shared.users]:
            self._forget(key)

    def _forget(self, key: tuple[object, ...]) -> None:
        self._sized(self._plans.pop(key).stages, 0)

    def _sized(self, stages: Sequence[_Stage], rows: int) -> bool:
        """Give stages room for `rows` rows each; False, and nothing changes, if the budget is short."""
        if not self._taken(sum(stage.layout.staged_bytes * (rows - stage.rows) for stage in stages)):
            return False
        try:
            for stage in stages:
                stage.resize(rows)
        except BaseException:
            for stage in stages:
                stage.resize(0)
            self._budget.give(sum(stage.layout.staged_bytes for stage in stages) * rows)
            raise
        return True

    def _taken(self, size: int) -> bool:
        """Count bytes, for which plans without requests lose their memory, the oldest first."""
        while not self._budget.take(size):
            idle = next((key for key, shared in self._plans.items() if not shared.users), None)
            if idle is not None:
                self._forget(idle)
            elif self._budget is not self._pool.budget or not self._pool.shrink():
                return False
        return True

    @property
    def locations(self) -> list[str]:
        """Locations of this pass in execution order."""
        return sorted(self._sites, key=self._order.__getitem__)

    def begin(self, parts: Sequence[Part], *, padded: int = 0) -> None:
        """Plan the edits and copies of a pass.

        Args:
            padded: rows of a pass of single tokens with further rows that are nobody's; 0 for any other.

        Raises:
            MemoryError: staging has no room for so many rows.
        """
        kept = {place: i for i, place in enumerate(in_pack(parts))}
        self._padded = padded
        whole = padded or sum(part.count for part in parts)
        self._counts = {False: whole, True: padded or max(1, len(kept))}
        self._sites = {}
        used: dict[tuple[object, ...], _Shared] = {}
        for part in parts:
            record = part.context.record
            if record is not None and part.rows:
                key = record.plan.copies
                if key not in used:
                    used[key] = self._plans[key]
                    for stage in used[key].stages:
                        stage.begin(padded)
                for stage in used[key].stages:
                    self._add(stage, part, record, kept)
            for write in part.writes:
                self._write(write, part, kept)
        # in an order that does not depend on the requests', so that a graph serves all of them
        plans = sorted(used.values(), key=lambda shared: shared.number)
        self.stages = [stage for shared in plans for stage in shared.stages if stage.owners]
        for stage in self.stages:
            self._read(stage)

    def at(self, location: str, value: Any) -> None:
        """Edit and read the value at a location, inside the forward pass."""
        site = self._sites.get(location)
        if site is None:
            return
        count = self._counts[site.tail]
        rows = tokens_first(value, count, location, flat=location in self._hooks.flat)
        for _, (change, places) in sorted(site.writes.items(), key=lambda item: item[0][0]):
            _apply(rows, places, change)
        for stage, group, point in site.reads:
            stage.take(group, point, rows.reshape(count, -1))

    def fetch(self) -> None:
        """Copy the rows of the pass to the host. No record has them yet, so the pass may run again."""
        self._copied = [(stage, stage.to_host()) for stage in self.stages]
        if self._copied and self._on_gpu:
            torch.cuda.current_stream(self._hooks.model.device).synchronize()

    def end(self) -> dict[Record, Exception]:
        """Give the fetched rows to the records. Not called if the pass failed.

        Returns: errors of the records that could not take their rows.
        """
        copied, self._copied = self._copied, []
        return {record: error for stage, rows in copied for record, error in stage.end(rows)}

    @property
    def copies(self) -> tuple[object, ...]:
        """Identity of this pass's copies: equal for passes that make the same ones to the same memory."""
        return tuple(stage.memory for stage in self.stages)

    def staged(self) -> list[Tensor]:
        """All rows that this pass copies, on the device."""
        return [rows for stage in self.stages for rows in stage.staged()]

    def _add(self, stage: _Stage, part: Part, record: Record, kept: dict[int, int]) -> None:
        tokens: Sequence[int] = part.rows
        places = [part.first + token - part.start for token in tokens]
        if stage.layout.tail:
            # a scored prompt has logits of earlier tokens too
            pairs = [
                (token, kept[place])
                for token, place in zip(tokens, places, strict=True)
                if place in kept and token >= record.tail_from
            ]
            tokens, places = [token for token, _ in pairs], [place for _, place in pairs]
        if places:
            stage.owners.append((record, tokens, places[0] if self._padded else len(stage.places)))
            if not self._padded:
                stage.places += places

    def _write(self, write: Write, part: Part, kept: dict[int, int]) -> None:
        site = self._site(write.location)
        places = [part.first + token - part.start for token in write.tokens]
        if site.tail:
            places = [kept[place] for place in places if place in kept]
        site.writes.setdefault(write.key, (write.change, []))[1].extend(places)

    def _read(self, stage: _Stage) -> None:
        rows = len(stage.places)
        if rows > stage.rows and not self._sized([stage], rows):
            raise MemoryError(f"no room for {rows} rows of a pass")  # a smaller pass will do
        for g, group in enumerate(stage.layout.groups):
            for i, location in enumerate(group.locations):
                self._site(location).reads.append((stage, g, i))

    def _site(self, location: str) -> _Site:
        if location not in self._sites:
            tail = self._hooks.structure.module_tensors[location].tail_only
            self._sites[location] = _Site(tail)
        return self._sites[location]


def _apply(rows: Tensor, places: Sequence[int], change: Change) -> None:
    """Write to `rows` [tokens, ...] in place."""
    if not places:
        return
    if len(places) == len(rows):
        rows.copy_(changed(rows, change))
        return
    index = torch.tensor(places, device=rows.device)
    rows[index] = changed(rows[index], change)
