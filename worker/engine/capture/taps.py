"""Edits and captures at each location of a pass: edits first, then one copy per plan.

Requests with equal plans share the copy: a point's rows of all of them go to their blocks at once. Which row
goes where is one index, made once per pass for all points of a layout. So each hook makes one `index_copy_`,
however many requests there are.

In decode passes on a GPU, rows that nobody keeps go to a block that belongs to no request. So neither the
calls nor their shapes depend on what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from worker.engine.capture.layouts import layouts_of
from worker.engine.capture.modules import tokens_first
from worker.engine.capture.parts import Part, Write, in_pack
from worker.engine.capture.points import Capture, Points
from worker.engine.capture.pool import Pool, Region
from worker.engine.capture.record import LayoutRows, Record
from worker.engine.capture.selection import Columns, index_on
from worker.engine.capture.summaries import summary_bytes
from worker.engine.edits import Change, changed
from worker.engine.locations import ModelHooks
from worker.engine.runs import CapturePlan

#: a location's place among all, a change, and the places of the tokens in the tensor that it changes
PlannedChange = tuple[int, Change, Sequence[int]]


@dataclass(slots=True)
class _Site:
    """One location in a pass."""

    tail: bool
    reads: list[tuple[Capture, Tensor, Tensor]] = field(default_factory=list)  # see `Capture.writes`
    writes: dict[tuple[int, tuple[object, ...]], tuple[Change, list[int]]] = field(default_factory=dict)


class Taps:
    """Edits and captures of one pass after the other. Forwards call `at`.

    Attributes:
        captures: those that write rows in this pass.
    """

    def __init__(self, hooks: ModelHooks, pool: Pool) -> None:
        self._hooks, self._pool = hooks, pool
        self._order = {location: i for i, location in enumerate(hooks.structure.module_locations)}
        self._plans: dict[tuple[object, ...], Points] = {}
        self._opened = 0
        self._sites: dict[str, _Site] = {}
        self._counts = {False: 0, True: 0}  # rows at a location in this pass, by `tail`
        self.captures: list[Capture] = []

    def open(self, plan: CapturePlan) -> Points | None:
        """Begin a request with this plan; None if the device has no room for its rows.

        Raises:
            UnknownHook, CaptureFailed: see `layouts_of`.
        """
        key = (plan.copies, plan.shaping.keeps_rows)
        points = self._plans.get(key)
        if points is not None and all(map(self._pool.holds, points.regions)):
            layouts = [region.layout for region in points.regions]
        else:
            points, layouts = None, layouts_of(self._hooks, plan)
        regions: list[Region] = []
        try:
            for layout in layouts:
                region = self._pool.open(layout, sums=summary_bytes(plan.shaping, [layout]))
                if region is None:
                    break
                regions.append(region)
            if len(regions) == len(layouts) and points is None:
                points = self._made(key, plan, regions)
        finally:
            if points is None or len(regions) < len(layouts):
                for region in regions:
                    self._pool.close(region)
        if points is None or len(regions) < len(layouts):
            return None
        points.users += 1
        return points

    def close(self, points: Points) -> None:
        """End a request with this plan. Its memory stays until another plan needs it."""
        points.users -= 1
        for region in points.regions:
            self._pool.close(region)

    def _made(self, key: tuple[object, ...], plan: CapturePlan, regions: Sequence[Region]) -> Points:
        for old in [one for one in self._plans.values() if not one.users]:
            if not all(map(self._pool.holds, old.regions)):
                del self._plans[old.key]
        columns = Columns(plan.shaping.columns)
        self._opened += 1
        captures = [Capture(region, columns) for region in regions]
        self._plans[key] = Points(key, captures, self._opened)
        return self._plans[key]

    @property
    def locations(self) -> list[str]:
        """Locations of this pass in execution order."""
        return sorted(self._sites, key=self._order.__getitem__)

    def begin(self, parts: Sequence[Part], *, padded: int = 0) -> None:
        """Plan the edits and copies of a pass.

        Args:
            padded: rows of a pass of single tokens with further rows that are nobody's; 0 for any other. Its
                calls and their memory depend on the plans of its requests alone.
        """
        kept = {place: i for i, place in enumerate(in_pack(parts))}
        whole = padded or sum(part.count for part in parts)
        self._counts = {False: whole, True: padded or max(1, len(kept))}
        spread = padded > 0 or (self._pool.on_gpu and all(part.count == 1 for part in parts))
        self._sites = {}
        used: dict[int, Points] = {}
        for part in parts:
            record, points = part.context.record, part.context.points
            if record is not None and points is not None and (part.rows or padded):
                if points.number not in used:
                    used[points.number] = points
                    for capture in points.captures:
                        capture.begin(self._counts[capture.layout.tail] if spread else 0)
                for capture, own in zip(points.captures, record.rows, strict=True):
                    _add(capture, own, part, record, kept)
            for write in part.writes:
                self._write(write, part, kept)
        # in an order that does not depend on the requests', so that a graph serves all of them
        captures = [capture for _, points in sorted(used.items()) for capture in points.captures]
        self.captures = [capture for capture in captures if capture.owners or padded]
        for capture in self.captures:
            capture.ready(self._counts[capture.layout.tail], fixed=padded > 0)
            for g, group in enumerate(capture.layout.groups):
                for location, (target, index) in zip(group.locations, capture.writes(g), strict=True):
                    self._site(location).reads.append((capture, target, index))

    def changes(self) -> list[PlannedChange]:
        """The changes of this pass, in the order in which they are made at each location."""
        return [
            (self._order[location], change, places)
            for location, site in self._sites.items()
            for _, (change, places) in sorted(site.writes.items(), key=lambda item: item[0][0])
            if places
        ]

    def follow(self, changes: Sequence[PlannedChange], tokens: int, kept: int) -> None:
        """Plan the changes of a pass that another rank has planned.

        Args:
            tokens: of the pass.
            kept: those whose logits are computed.
        """
        locations = list(self._order)
        self._counts = {False: tokens, True: kept}
        self._sites, self.captures = {}, []
        for number, (place, change, places) in enumerate(changes):
            self._site(locations[place]).writes[number, ()] = change, list(places)

    def at(self, location: str, value: Any) -> None:
        """Edit and read the value at a location, inside the forward pass."""
        site = self._sites.get(location)
        if site is None:
            return
        count = self._counts[site.tail]
        rows = tokens_first(value, count, location, flat=location in self._hooks.flat)
        for _, (change, places) in sorted(site.writes.items(), key=lambda item: item[0][0]):
            _apply(rows, places, change)
        for capture, target, index in site.reads:
            capture.take(target, index, rows if rows.ndim == 2 else rows.reshape(count, -1))

    def note(self) -> dict[Record, Exception]:
        """Count the rows of a good pass, and let full blocks leave the device.

        Returns: errors of the records that could not take their rows.
        """
        failed: dict[Record, Exception] = {}
        for capture in self.captures:
            for record, own, tokens in capture.owners:
                try:
                    self._pool.leave(own.note(tokens))
                except Exception as error:  # noqa: BLE001 (it fails this request alone)
                    failed[record] = error
        return failed

    @property
    def copies(self) -> tuple[object, ...]:
        """Identity of this pass's copies: equal for passes that make the same ones to the same memory."""
        return tuple(capture.memory for capture in self.captures)

    def written(self) -> list[tuple[Tensor, Tensor]]:
        """Targets of this pass: slabs as rows [.., width], and the numbers of rows in each."""
        return [pair for capture in self.captures for pair in capture.written()]

    def _write(self, write: Write, part: Part, kept: dict[int, int]) -> None:
        site = self._site(write.location)
        places = [part.first + token - part.start for token in write.tokens]
        if site.tail:
            places = [kept[place] for place in places if place in kept]
        site.writes.setdefault(write.key, (write.change, []))[1].extend(places)

    def _site(self, location: str) -> _Site:
        if location not in self._sites:
            tail = self._hooks.structure.module_tensors[location].tail_only
            self._sites[location] = _Site(tail)
        return self._sites[location]


def _add(capture: Capture, own: LayoutRows, part: Part, record: Record, kept: dict[int, int]) -> None:
    tokens: Sequence[int] = part.rows
    places: Sequence[int] = [part.first + token - part.start for token in tokens]
    if capture.layout.tail:
        # a scored prompt has logits of earlier tokens too
        pairs = [
            (token, kept[place])
            for token, place in zip(tokens, places, strict=True)
            if place in kept and token >= record.tail_from
        ]
        tokens, places = [token for token, _ in pairs], [place for _, place in pairs]
    if record.kept.newest_only:
        tokens, places = tokens[-1:], places[-1:]
    if places:
        capture.add(record, own, tokens, places)


def _apply(rows: Tensor, places: Sequence[int], change: Change) -> None:
    """Write to `rows` [tokens, ...] in place."""
    if not places:
        return
    if len(places) == len(rows):
        rows.copy_(changed(rows, change))
        return
    index = index_on(places, rows.device)
    rows[index] = changed(rows[index], change)
