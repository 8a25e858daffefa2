"""The cells of a patched pair: rows of one session that become edits of the other's prompt."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from actograph.contract.errors import InsufficientResources, PairSkipped
from actograph.contract.head_columns import columns_of
from actograph.contract.job_specs import PatchSpec
from actograph.contract.models import ModelStructure
from actograph.contract.patching import (
    MAX_ROW_BYTES,
    PatchGrid,
    count_from_the_end,
    grid_of,
    places_of,
)
from actograph.contract.row_selection import HeadFeatures, TokenRange, consecutive
from actograph.dtypes import DTYPES
from evals.plans import STEP_TOKENS
from storage.sessions import selected_rows
from storage.sessions.reader import SessionReader
from worker.engine.messages import Edit
from worker.runners.runner import ReplayedSample

#: cells of one request, at most, and bytes of their rows
MOST_CELLS, _MOST_BYTES = 1024, 16 << 20


class Cell(NamedTuple):
    """A cell: its place in the metric's array, its first token, and its edits."""

    place: tuple[int, ...]
    first: int
    edits: tuple[Edit, ...]

    @property
    def bytes(self) -> int:
        """Size of its rows."""
        return sum(edit.vector.nbytes for edit in self.edits if edit.vector is not None)


@dataclass(frozen=True, kw_only=True)
class PairCells:
    """All cells of a pair.

    Attributes:
        positions: name -> tokens of the source, and of the prompt that is patched.
        rows: float32 [tokens, width] of each hook, of all tokens of the source's positions.
        alike: first tokens whose rows are those of both sides, since nothing differs up to them.
    """

    grid: PatchGrid
    structure: ModelStructure
    positions: Mapping[str, tuple[Sequence[int], Sequence[int]]]
    rows: Mapping[str, NDArray[np.float32]]
    alike: int = 0

    @property
    def unchanged(self) -> list[int]:
        """Numbers of the positions whose rows are those of the prompt anyway."""
        return [i for i, (own, places) in enumerate(self.positions.values()) if self._is_alike(own, places)]

    def _is_alike(self, tokens: Sequence[int], places: Sequence[int]) -> bool:
        return list(tokens) == list(places) and max(tokens) < self.alike

    @property
    def shape(self) -> tuple[int, ...]:
        """Points, layers, positions, and heads if single heads are patched."""
        grid = self.grid
        heads = () if grid.heads is None else (len(grid.heads),)
        return (len(grid.points), len(grid.layers), len(self.positions), *heads)

    def __len__(self) -> int:
        return self.grid.cells * (len(self.positions) - len(self.unchanged))

    def __iter__(self) -> Iterator[Cell]:
        """Cells that may change something, by position: those with a common beginning follow each other."""
        grid = self.grid
        start = 0
        for position, (tokens, places) in enumerate(self.positions.values()):
            of_tokens = range(start, start := start + len(tokens))
            if self._is_alike(tokens, places):
                continue
            for (point, layer), hook in grid.hooks.items():
                at = grid.points.index(point), grid.layers.index(layer), position
                for place, head in enumerate(grid.heads or [None]):
                    columns = None
                    if head is not None:
                        columns = columns_of(HeadFeatures(heads=[head]), hook, self.structure, "heads")
                    rows = self.rows[hook][of_tokens.start : of_tokens.stop]
                    edits = tuple(
                        Edit(
                            hook=hook,
                            op="replace",
                            vector=np.ascontiguousarray(row if columns is None else row[list(columns)]),
                            positions=TokenRange(start=token, stop=token + 1),
                            columns=columns,
                        )
                        for token, row in zip(places, rows, strict=True)
                    )
                    yield Cell(at if head is None else (*at, place), min(places), edits)

    def together(self, prompt_tokens: int) -> Iterator[Sequence[Cell]]:
        """The cells of one request after the other; those that begin too early are alone.

        Args:
            prompt_tokens: of the prompt that is patched.
        """
        some, size = list[Cell](), 0
        for cell in self:
            if prompt_tokens - cell.first > STEP_TOKENS:
                yield [cell]
                continue
            if some and (len(some) == MOST_CELLS or size + cell.bytes > _MOST_BYTES):
                yield some
                some, size = [], 0
            some.append(cell)
            size += cell.bytes
        if some:
            yield some


def cells_of(
    spec: PatchSpec,
    structure: ModelStructure,
    source: ReplayedSample,
    into: ReplayedSample,
    *,
    steered: bool = False,
) -> PairCells:
    """Read the rows of a pair's cells.

    Args:
        steered: a side is read with interventions.

    Raises:
        PairSkipped: the prompts do not correspond, or the source does not store a row.
        InsufficientResources: the rows are too many.
        StoreDamaged: the files of the source are damaged.
    """
    grid = grid_of(spec, structure)
    lengths = len(source.turns[0][0]), len(into.turns[0][0])
    if lengths[0] != lengths[1] and not count_from_the_end(spec):
        raise PairSkipped(
            f"the prompts of sessions {source.reader.session_id} and {into.reader.session_id} have "
            f"{lengths[0]} and {lengths[1]} tokens, so their tokens do not correspond; give prompts of the "
            "same length, or positions that count from the end, such as -1 or prompt[-3:]"
        )
    theirs, ours = (places_of(spec, length) for length in lengths)
    for name, tokens in theirs.items():
        if len(tokens) != len(ours[name]):
            raise PairSkipped(
                f"{name} selects {len(tokens)} tokens of session {source.reader.session_id}, and "
                f"{len(ours[name])} of {into.reader.session_id}"
            )
    positions = {name: (tokens, ours[name]) for name, tokens in theirs.items()}
    tokens = [token for some in theirs.values() for token in some]
    widths = {name: _width(structure, name) for name in grid.hooks.values()}
    if (size := 4 * len(tokens) * sum(widths.values())) > MAX_ROW_BYTES:
        raise InsufficientResources(
            f"the rows of the pair take {size:,} bytes, and may take {MAX_ROW_BYTES:,}; choose layers, "
            "points or positions",
            param="positions",
        )
    rows = {name: _rows(source.reader, name, tokens, width) for name, width in widths.items()}
    exact = not steered and all(_is_exact(source.reader, name, structure) for name in rows)
    return PairCells(
        grid=grid,
        structure=structure,
        positions=positions,
        rows=rows,
        alike=_common(source.turns[0][0], into.turns[0][0]) if exact else 0,
    )


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """First tokens that two prompts have in common."""
    pairs = zip(one, other, strict=False)
    differing = (place for place, (own, theirs) in enumerate(pairs) if own != theirs)
    return next(differing, min(len(one), len(other)))


def _is_exact(reader: SessionReader, hook: str, structure: ModelStructure) -> bool:
    """Whether stored rows are as the model computes them, and not rounded."""
    info = structure.tensor_of(hook)
    stored = DTYPES[reader.manifest.tensors[hook].dtype]
    return info is not None and stored.torch in (info.dtype, "float32", "float64")


def _width(structure: ModelStructure, hook: str) -> int:
    info = structure.tensor_of(hook)
    assert info is not None, hook
    return info.width


def _rows(reader: SessionReader, hook: str, tokens: Sequence[int], width: int) -> NDArray[np.float32]:
    """Rows of these tokens, [tokens, width]. Raises PairSkipped, StoreDamaged."""
    said = f"session {reader.session_id} stores no whole rows of {hook}"
    info = reader.manifest.tensors.get(hook)
    if info is None or info.summary is not None or not info.dtype.startswith(("F", "BF")):
        raise PairSkipped(f"{said}; capture it, or replay the session with it")
    if info.shape[1] != width:
        raise PairSkipped(f"{said}, but {info.shape[1]} of its {width} columns; capture it without features")
    stored = reader.tokens_of_rows(hook)
    numbers = []
    for token in tokens:
        number = bisect_left(stored, token)
        if number == len(stored) or stored[number] != token:
            raise PairSkipped(f"session {reader.session_id} has no row of token {token} of {hook}")
        numbers.append(number)
    distinct = sorted(set(numbers))
    read = [selected_rows.read(reader, hook, start, stop) for start, stop in consecutive(distinct)]
    found: NDArray[np.float32] = np.concatenate(read).astype(np.float32)
    return found[[bisect_left(distinct, number) for number in numbers]]
