"""Edits and captures at each location of a pass: edits first, then one copy per capture.

Requests with equal captures share the copy: a point's rows of all of them go to their blocks at once. Which
row goes where is one index, made once per pass for all points of a layout. So each hook makes one
`index_copy_`, however many requests there are.

In passes of fixed shape the changes of edits are read from tables, see `edit_tables`.

In decode passes on a GPU, rows that nobody keeps go to a block that belongs to no request. So neither the
calls nor their shapes depend on what is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from worker.engine.capture.directions import Directions, ReadoutDirections
from worker.engine.capture.encoders import Encoder, Encoders
from worker.engine.capture.layouts import Layout, layouts_of, likeness_of
from worker.engine.capture.modules import tokens_first
from worker.engine.capture.points import FixedIndices, LayoutCopies, Points
from worker.engine.capture.pool import Pool, Region
from worker.engine.capture.record import LayoutRows, Record
from worker.engine.capture.selection import Columns, index_on
from worker.engine.capture.summaries import summary_bytes
from worker.engine.edit_tables import EditTables, Stage
from worker.engine.edits import CHANGED_NUMBERS, Change, PlannedChange, Write, changed
from worker.engine.locations import ModelHooks
from worker.engine.messages import Capture
from worker.engine.slot import Slot, in_pack

log = logging.getLogger(__name__)

#: captures without requests and blocks that are kept, since their graphs serve again with the same blocks
_MOST_WITHOUT_REGIONS = 8


@dataclass(slots=True)
class _Site:
    """One location in a pass."""

    tail: bool
    reads: list[tuple[LayoutCopies, Tensor, Tensor]] = field(default_factory=list)  # see its `writes`
    computes: list[LayoutCopies] = field(default_factory=list)  # of latents and readouts
    #: places in the tensor by order and change
    writes: dict[tuple[int, Change], list[int]] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)  # changes that stand in tables
    #: take rows after all changes: their places in the tensor, and what is called with them
    takes: list[tuple[Sequence[int], Callable[[Tensor], None]]] = field(default_factory=list)


class Written(NamedTuple):
    """Rows of one layout that a pass has written: of these tokens."""

    record: Record
    own: LayoutRows
    tokens: Sequence[int]


class PassHooks:
    """Edits and captures of one pass after the other. Forwards call `at`.

    Args:
        padded: rows of the largest pass of fixed shape, if there are such passes.
        tables: of edits, for these.

    Attributes:
        pool: of the blocks that rows go to.
        copies: those that write rows in this pass.
    """

    def __init__(
        self, hooks: ModelHooks, pool: Pool, *, padded: int = 0, tables: EditTables | None = None
    ) -> None:
        self._hooks, self.pool, self._tables = hooks, pool, tables
        self.encoders = Encoders(pool.reserve, pool.memory.remove)
        self.directions = ReadoutDirections(pool.reserve, pool.memory.remove)
        self._padded = False  # products have one shape, see `begin`
        self._fixed = FixedIndices(padded, pool.device) if padded else None
        self._order = {location: i for i, location in enumerate(hooks.structure.module_locations)}
        self._points: dict[tuple[object, ...], Points] = {}
        self._opened = self._made_points = 0
        self._told: set[str] = set()  # why edits are not in the tables
        self._sites: dict[str, _Site] = {}
        self._counts = {False: 0, True: 0}  # rows at a location in this pass, by `tail`
        self.copies: list[LayoutCopies] = []

    def open(self, capture: Capture) -> Points | None:
        """Begin a request with this capture; None if the device has no room for its rows.

        Raises:
            UnknownHook, CaptureFailed: see `layouts_of`.
        """
        key = likeness_of(capture)
        points = self._points.get(key)
        held = points is not None and self._holds(points)
        if points is not None and held:
            layouts = [region.layout for region in points.regions]
        else:
            layouts = layouts_of(self._hooks, capture)
        regions: list[Region] = []
        made: dict[Layout, Encoder | Directions] = {}
        try:
            for layout in layouts:
                region = self.pool.open(layout, sums=summary_bytes(capture, [layout]))
                if region is None:
                    break
                regions.append(region)
                if layout.is_computed:
                    one = self._open_computed(layout)
                    if one is None:
                        break
                    made[layout] = one
            computed = sum(layout.is_computed for layout in layouts)
            complete = len(regions) == len(layouts) and len(made) == computed
            if complete and not held:
                points = self._made(key, capture, regions)
        except BaseException:
            complete = False
            raise
        finally:
            if not complete:
                for region in regions:
                    self.pool.close(region)
                for layout in made:
                    self._close_computed(layout)
        if not complete or points is None:
            return None
        for copies in points.copies:
            one = made.get(copies.layout)
            copies.encoder = one if isinstance(one, Encoder) else None
            copies.directions = one if isinstance(one, Directions) else None
        points.users += 1
        self._opened += not points.is_open
        points.is_open = True
        return points

    def close(self, points: Points) -> None:
        """End a request with this capture. Blocks stay until others need them, SAEs do not."""
        points.users -= 1
        if points.computes and not points.users:
            points.is_open = False  # passes of fixed shape go on without it
            self._opened += 1
        for copies in points.copies:
            self.pool.close(copies.region)
            if copies.layout.is_computed:
                self._close_computed(copies.layout)
            if not points.users:
                copies.encoder = copies.directions = None

    def _open_computed(self, layout: Layout) -> Encoder | Directions | None:
        """What a layout's rows are computed with, for one more request; None if there is no room for it."""
        if layout.encoding is not None:
            return self.encoders.open(layout.encoding)
        return self.directions.open(layout)

    def _close_computed(self, layout: Layout) -> None:
        if layout.encoding is not None:
            self.encoders.close(layout.encoding)
        else:
            self.directions.close(layout)

    @property
    def opened(self) -> int:
        """A number that grows as passes of fixed shape change: captures and kinds of edits open, or end."""
        return self._opened + (0 if self._tables is None else self._tables.opened)

    def open_edits(self, slot: Slot) -> None:
        """Write a request's edits into the tables, if passes can make them from there."""
        if self._tables is None or not slot.edits or slot.sampler is None:
            return
        slot.edit_rows = self._tables.open(slot.sampler.number, slot.edits)
        reason = self._tables.refused
        if reason is not None and reason not in self._told:
            self._told.add(reason)
            log.info("steered passes are not replayed as CUDA graphs: %s", reason)

    def close_edits(self, slot: Slot) -> None:
        """End a request's use of the tables."""
        if self._tables is not None and slot.edit_rows is not None:
            self._tables.close(slot.edit_rows)
            slot.edit_rows = None

    def end(self) -> None:
        """End a run: let go of what its last pass has."""
        self._sites, self.copies = {}, []
        for points in self._points.values():
            for copies in points.copies:
                copies.end()

    def close_idle(self) -> None:
        """Close what no request has now; the next request with it opens it again."""
        for points in self._points.values():
            points.is_open = points.users > 0
        if self._tables is not None:
            self._tables.close_idle()

    def _holds(self, points: Points) -> bool:
        """Whether the blocks of a capture still have their memory."""
        return all(map(self.pool.holds, points.regions))

    def _made(self, key: tuple[object, ...], capture: Capture, regions: Sequence[Region]) -> Points:
        """Points in new regions: those of before, if the regions lie where theirs were."""
        known = self._points.pop(key, None)
        if known is not None and [one.place for one in known.regions] == [one.place for one in regions]:
            for copies, region in zip(known.copies, regions, strict=True):
                copies.region = region
            known.is_open = False
        else:
            columns = Columns(capture.columns)
            self._made_points += 1
            copies_of = [LayoutCopies(region, columns, self._fixed) for region in regions]
            self._drop(known)
            known = Points(key, copies_of, self._made_points)
        self._points[key] = known
        left = [one for one in self._points.values() if not one.users and not self._holds(one)]
        for old in left[: max(0, len(left) - _MOST_WITHOUT_REGIONS)]:
            if old is not known:
                self._drop(self._points.pop(old.key))
        return known

    def _drop(self, points: Points | None) -> None:
        """Forget points, whose graphs serve no more."""
        for copies in () if points is None else points.copies:
            if self._fixed is not None and copies.number is not None:
                self._fixed.give(copies.number)

    @property
    def locations(self) -> list[str]:
        """Locations of this pass in execution order."""
        return sorted(self._sites, key=self._order.__getitem__)

    def begin(self, slots: Sequence[Slot], *, padded: int = 0, rows: int = 0) -> None:
        """Plan the edits and copies of a pass.

        Args:
            rows: of the pass, of which those before the slots' are nobody's; 0: it has no further rows. The
                numbers of a row then do not depend on its neighbours, those of its latents neither.
            padded: rows of a pass of single tokens with further rows that are nobody's; 0 for any other. Its
                calls and their memory depend on the captures that are open alone.
        """
        kept = {place: i for i, place in enumerate(in_pack(slots))}
        total = padded or rows or sum(slot.count for slot in slots)
        self._counts = {False: total, True: padded or (rows if kept else 0) or max(1, len(kept))}
        self._padded = rows > 0
        spread = padded > 0 or (self.pool.on_gpu and all(slot.count == 1 for slot in slots))
        self._sites = {}
        used: dict[int, Points] = {}
        if padded:  # all that are open, whoever takes part
            used = {one.number: one for one in self._points.values() if one.is_open and self._holds(one)}
            for one in used.values():
                for copies in one.copies:
                    copies.begin(self._counts[copies.layout.tail])
        for slot in slots:
            record, points = slot.record, slot.points
            if record is not None and points is not None and (slot.rows or padded):
                if points.number not in used:
                    used[points.number] = points
                    for copies in points.copies:
                        # an eager pass computes latents and readouts of kept rows alone; 64 rows of a
                        # replayed pass take an SAE hardly longer than one, which reads all weights too
                        whole = spread and not copies.layout.is_computed
                        copies.begin(self._counts[copies.layout.tail] if whole else 0)
                for copies, own in zip(points.copies, record.rows, strict=True):
                    _add(copies, own, slot, record, kept)
            for write in slot.writes if not padded or self._tables is None else ():
                self._write(write, slot, kept)
            value = slot.value
            if value is not None and slot.computed <= value.token < slot.stop:
                place = slot.first + value.token - slot.computed
                site = self._site(value.location)
                if not site.tail or place in kept:
                    site.takes.append(([kept[place] if site.tail else place], value.take))
        if padded and self._tables is not None and self._tables.key:
            for stage in self._tables.open_stages:
                self._site(stage.location).stages.append(stage)
            self._tables.fill([(slot.edit_rows, slot.writes) for slot in slots])
        # in an order that does not depend on the requests', so that a graph serves all of them
        in_order = [copies for _, points in sorted(used.items()) for copies in points.copies]
        self.copies = [copies for copies in in_order if copies.owners or padded]
        for copies in self.copies:
            copies.ready(self._counts[copies.layout.tail], fixed=padded > 0)
            if copies.layout.is_computed:
                for location in copies.computed_at:
                    self._site(location).computes.append(copies)
                continue
            for g, group in enumerate(copies.layout.groups):
                for location, (target, index) in zip(group.locations, copies.writes(g), strict=True):
                    self._site(location).reads.append((copies, target, index))

    @property
    def trials(self) -> int:
        """Trials that show what a pass of fixed shape does."""
        return 1 if self._tables is None else self._tables.trials

    def try_out(self, number: int, rows: int, *, from_tables: bool) -> None:
        """Begin a pass of fixed shape that is nobody's, with examples of the edits that are open.

        All rows have the same edits, since they read and write one place of the arena.

        Args:
            from_tables: or else as passes of other shapes make them.
        """
        self.begin((), padded=rows)
        if self._tables is None:
            return
        for stage, change in self._tables.try_out(number, rows):
            if not from_tables:
                self._sites[stage.location].writes[stage.place, change] = list(range(rows))
        if not from_tables:
            for site in self._sites.values():
                site.stages = []

    def changes(self) -> list[PlannedChange]:
        """The changes of this pass, in the order in which they are made at each location."""
        return [
            (self._order[location], change, places)
            for location, site in self._sites.items()
            for (_, change), places in sorted(site.writes.items(), key=lambda item: item[0][0])
            if places
        ]

    def take_at(self, location: str, places: Sequence[int], take: Callable[[Tensor], None]) -> None:
        """Let a planned pass give rows of a location, after its changes.

        Args:
            places: in the tensor.
        """
        self._site(location).takes.append((places, take))

    def follow(self, changes: Sequence[PlannedChange], tokens: int, kept: int) -> None:
        """Plan the changes of a pass that another rank has planned.

        Args:
            tokens: of the pass.
            kept: those whose logits are computed.
        """
        locations = list(self._order)
        self._counts = {False: tokens, True: kept}
        self._sites, self.copies = {}, []
        for order, (place, change, places) in enumerate(changes):
            self._site(locations[place]).writes[order, change] = list(places)

    def at(self, location: str, value: Any) -> None:
        """Edit and read the value at a location, inside the forward pass."""
        site = self._sites.get(location)
        if site is None:
            return
        count = self._counts[site.tail]
        rows = tokens_first(value, count, location, flat=location in self._hooks.flat)
        for stage in site.stages:
            assert self._tables is not None
            self._tables.change(stage, rows)
        for (_, change), places in sorted(site.writes.items(), key=lambda item: item[0][0]):
            _apply(rows, places, change)
        for chosen, take in site.takes:
            take(rows[index_on(chosen, rows.device)])
        flat = rows if rows.ndim == 2 or not (site.reads or site.computes) else rows.reshape(count, -1)
        for copies, target, index in site.reads:
            copies.take(target, index, flat)
        for copies in site.computes:
            copies.compute(location, flat, padded=self._padded)

    def wrote(self) -> list[Written]:
        """Rows of the launched pass: they keep their places, and count when they are noted."""
        written = [Written(*owner) for copies in self.copies for owner in copies.owners]
        for one in written:
            one.own.wrote(len(one.tokens))
        return written

    def note(self, written: Sequence[Written]) -> dict[Record, Exception]:
        """Count rows of a good pass, and let full blocks leave the device.

        Returns: errors of the records that could not take their rows.
        """
        failed: dict[Record, Exception] = {}
        for record, own, tokens in written:
            try:
                self.pool.leave(own.note(tokens))
            except Exception as error:  # noqa: BLE001 (it fails this request alone)
                failed[record] = error
        return failed

    @property
    def memory(self) -> tuple[object, ...]:
        """Identity of what this pass writes to and changes: equal for fixed passes that do the same."""
        return (
            *(copies.memory for copies in self.copies),
            *(() if self._tables is None else self._tables.key),
        )

    def written(self) -> list[tuple[Tensor, Tensor]]:
        """Targets of this pass: slabs as rows [.., width], and the numbers of rows in each."""
        return [pair for copies in self.copies for pair in copies.written()]

    def _write(self, write: Write, slot: Slot, kept: dict[int, int]) -> None:
        site = self._site(write.location)
        places = [slot.first + token - slot.computed for token in write.tokens]
        if site.tail:
            places = [kept[place] for place in places if place in kept]
        site.writes.setdefault((write.order, write.change), []).extend(places)

    def _site(self, location: str) -> _Site:
        if location not in self._sites:
            tail = self._hooks.structure.module_tensors[location].tail_only
            self._sites[location] = _Site(tail)
        return self._sites[location]


def _add(copies: LayoutCopies, own: LayoutRows, slot: Slot, record: Record, kept: dict[int, int]) -> None:
    tokens: Sequence[int] = slot.rows
    places: Sequence[int] = [slot.first + token - slot.computed for token in tokens]
    if copies.layout.tail:
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
        copies.add(record, own, tokens, places)


def _apply(rows: Tensor, places: Sequence[int], change: Change) -> None:
    """Write to `rows` [tokens, ...] in place."""
    size = max(1, CHANGED_NUMBERS // max(1, rows[:1].numel()))
    if len(places) == len(rows):
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            some.copy_(changed(some, change))
        return
    for start in range(0, len(places), size):
        index = index_on(places[start : start + size], rows.device)
        rows[index] = changed(rows[index], change)
