"""Layouts: points whose rows lie in the same blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from actograph.contract.errors import CaptureFailed
from actograph.contract.saes import part_names
from actograph.dtypes import SCALE_BYTES
from evals.plans import BLOCK_ROWS
from worker.engine.capture.selection import DTYPES, SCALED, Columns, stored_dtype
from worker.engine.locations import ModelHooks
from worker.engine.messages import Capture, Encoding, Readout

#: rows of a block
BLOCK = BLOCK_ROWS


@dataclass(frozen=True, slots=True)
class Group:
    """Points whose rows have one width and one dtype."""

    locations: tuple[str, ...]  # in execution order
    names: tuple[tuple[str, ...], ...]  # hooks of each location
    width: int
    source: torch.dtype  # as the model computes the rows
    stored: torch.dtype  # as they are delivered

    @property
    def held(self) -> torch.dtype:
        """Dtype of the blocks: bytes for rows that have a scale each."""
        return torch.uint8 if self.stored is SCALED else self.stored

    @property
    def held_width(self) -> int:
        """Elements of a row in the blocks."""
        return self.width + SCALE_BYTES if self.stored is SCALED else self.width


@dataclass(frozen=True, slots=True)
class Layout:
    """Points of a capture with rows of the same tokens.

    Attributes:
        tail: the points exist only for tokens whose logits are computed.
        kept: the rows are delivered.
        summed: the rows are summed up.
        encoding: the rows are latents: the first group has their numbers, the second their activations.
        readouts: the rows are values of these, one for each point of the only group.
    """

    groups: tuple[Group, ...]
    tail: bool
    kept: bool = True
    summed: bool = False
    encoding: Encoding | None = None
    readouts: tuple[Readout, ...] = ()

    @property
    def is_computed(self) -> bool:
        """Whether the rows are computed from those of the model."""
        return self.encoding is not None or bool(self.readouts)

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's rows."""
        return sum(len(g.locations) * g.held_width * g.held.itemsize for g in self.groups)

    @property
    def block_bytes(self) -> int:
        return self.row_bytes * BLOCK


def likeness_of(capture: Capture) -> tuple[object, ...]:
    """Key of captures whose requests share the copies of a pass."""
    kinds = capture.summarises, capture.keeps_rows
    return capture.hooks, capture.encodings, capture.readouts, capture.dtype, capture.columns, *kinds


def layouts_of(hooks: ModelHooks, capture: Capture) -> list[Layout]:
    """Layouts of a capture's points: those with all tokens, then those with the last ones alone.

    Rows are summed up as the model computes them. If they are delivered in another dtype besides, they are
    written twice, to a layout that is kept and to one that is summed.

    Raises:
        UnknownHook: the model has no such hook.
        CaptureFailed: a hook has too few columns.
    """
    columns, requested = Columns(capture.columns), DTYPES.get(capture.dtype)
    alike: dict[bool, dict[tuple[int, torch.dtype], list[tuple[str, tuple[str, ...]]]]] = {}
    for location, names in hooks.reads(capture.hooks):
        info = hooks.structure.module_tensors[location]
        key = (columns.width(info.width, names[0]), getattr(torch, info.dtype))
        alike.setdefault(info.tail_only, {}).setdefault(key, []).append((location, names))
    layouts = []
    kept, summed = capture.keeps_rows, capture.summarises
    for tail, points in sorted(alike.items()):
        stored = _groups(points, requested)
        source = _groups(points, None)
        if kept:
            layouts.append(Layout(stored, tail, summed=summed and stored == source))
        if summed and not (kept and stored == source):
            layouts.append(Layout(source, tail, kept=False, summed=True))
    layouts += [_encoded(hooks, encoding) for encoding in capture.encodings]
    return [*layouts, *_read_out(hooks, capture.readouts)]


def _read_out(hooks: ModelHooks, readouts: Sequence[Readout]) -> list[Layout]:
    """The layouts of readouts: of points with all tokens, and of those with the last ones alone.

    Raises:
        UnknownHook: the model has no such hook.
        CaptureFailed: a vector does not fit its hook.
    """
    alike: dict[bool, list[tuple[str, Readout]]] = {}
    for readout in readouts:
        ((location, _),) = hooks.reads([readout.hook])
        info, width = hooks.structure.module_tensors[location], readout.width
        if info.width != width or not getattr(torch, info.dtype).is_floating_point:
            raise CaptureFailed(
                f"{readout.name}: the vector has {width} numbers, {readout.hook} has {info.width} "
                f"{info.dtype}"
            )
        alike.setdefault(info.tail_only, []).append((location, readout))
    layouts = []
    for tail, own in sorted(alike.items()):
        names = tuple((readout.name,) for _, readout in own)
        group = Group(tuple(location for location, _ in own), names, 1, torch.float32, torch.float32)
        layouts.append(Layout((group,), tail, readouts=tuple(readout for _, readout in own)))
    return layouts


def _encoded(hooks: ModelHooks, encoding: Encoding) -> Layout:
    """The layout of latents, which has one place. Raises UnknownHook, CaptureFailed."""
    ((location, _),) = hooks.reads([encoding.hook])
    info, config = hooks.structure.module_tensors[location], encoding.config
    if info.width != config.d_in or not getattr(torch, info.dtype).is_floating_point:
        raise CaptureFailed(
            f"{encoding.name}: the SAE takes rows of {config.d_in} floats, {encoding.hook} has {info.width} "
            f"{info.dtype}"
        )
    indices, values = part_names(encoding.name)
    groups = (
        Group((location,), ((indices,),), encoding.top, torch.int32, torch.int32),
        Group((location,), ((values,),), encoding.top, torch.float32, torch.float32),
    )
    return Layout(groups, info.tail_only, encoding=encoding)


def _groups(
    points: dict[tuple[int, torch.dtype], list[tuple[str, tuple[str, ...]]]], requested: torch.dtype | None
) -> tuple[Group, ...]:
    return tuple(
        Group(
            tuple(location for location, _ in own),
            tuple(names for _, names in own),
            width,
            source,
            stored_dtype(source, requested),
        )
        for (width, source), own in points.items()
    )
