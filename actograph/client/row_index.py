"""numpy's indexing over rows that are read by range."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph import tensor_files
from actograph.contract.errors import StoreDamaged
from actograph.tensor_files import Array

#: rows between two selected ones are read along if they are smaller: a request costs more
GAP_BYTES = 64 << 10


@dataclass(frozen=True)
class RowPlan:
    """Ranges [low, high) of rows to read, and the index to apply to these rows in one array."""

    ranges: list[tuple[int, int]]
    index: Any

    @property
    def rows(self) -> int:
        """Number of rows to read."""
        return sum(high - low for low, high in self.ranges)


class IndexedRows:
    """Shape and dtype of a tensor `[rows, ...]` whose rows are read when they are indexed."""

    def __init__(self, stored_dtype: str, shape: Sequence[int]) -> None:
        if not shape:
            raise StoreDamaged("a tensor without dimensions has no rows")
        self.stored_dtype = stored_dtype
        self.shape: tuple[int, ...] = tuple(shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of returned arrays."""
        bits = tensor_files.NUMPY_DTYPES[self.stored_dtype]
        return np.dtype("<f4") if self.stored_dtype == "BF16" else bits

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Stored size of one row."""
        return math.prod(self.shape[1:]) * tensor_files.itemsize(self.stored_dtype)

    @property
    def nbytes(self) -> int:
        """Stored size of all rows."""
        return len(self) * self.row_bytes

    def __len__(self) -> int:
        return self.shape[0]


def plan(index: Any, shape: Sequence[int], row_bytes: int) -> RowPlan:
    """Return the rows that `tensor[index]` needs: only the first axis decides.

    Args:
        index: anything that indexes a numpy array: rows, slices, lists, masks, `...`, and tuples of them.

    Raises:
        IndexError: the tensor has no such rows or columns, or the index is none of numpy's.
    """
    parts = _full(index if isinstance(index, tuple) else (index,), len(shape))
    if any(part is None for part in parts) or any(_is_wide_mask(part) for part in parts[1:]):
        return RowPlan([(0, shape[0])], parts)
    first, rest = parts[0], parts[1:]
    if isinstance(first, slice):
        chosen = range(shape[0])[first]
        if not chosen:
            return RowPlan([], (slice(0, 0), *rest))
        low, high = min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1]) + 1
        return RowPlan([(low, high)], (slice(None, None, chosen.step), *rest))
    rows = np.asarray(first)
    if rows.dtype == bool and rows.ndim > 1:
        return _masked(rows, rest, shape)
    if rows.dtype == bool:
        if rows.shape != (shape[0],):
            raise IndexError(f"a mask of shape {list(rows.shape)} does not fit a tensor of {shape[0]} rows")
        rows = np.flatnonzero(rows)
    return _picked(_row_numbers(rows, shape[0]), rest, row_bytes)


def _full(parts: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """Replace `...` by slices, so that the first part is the index of the rows."""
    used = sum(_axes(part) for part in parts if part is not None and part is not Ellipsis)
    dots = [place for place, part in enumerate(parts) if part is Ellipsis]
    if used > ndim or len(dots) > 1:
        raise IndexError(f"too many indices: the tensor has {ndim} dimensions")
    place = dots[0] if dots else len(parts)
    return (*parts[:place], *[slice(None)] * (ndim - used), *parts[place + len(dots) :])


def _axes(part: Any) -> int:
    return int(np.ndim(part)) if _is_wide_mask(part) else 1


def _is_wide_mask(part: Any) -> bool:
    """Whether a part is a mask over several axes."""
    if part is None or isinstance(part, slice | int | np.integer):
        return False
    array = np.asarray(part)
    return array.dtype == bool and array.ndim > 1


def _masked(mask: NDArray[Any], rest: tuple[Any, ...], shape: Sequence[int]) -> RowPlan:
    if mask.shape != tuple(shape[: mask.ndim]):
        raise IndexError(f"a mask of shape {list(mask.shape)} does not fit a tensor {list(shape)}")
    rows = np.flatnonzero(mask.reshape(len(mask), -1).any(axis=1))
    if not len(rows):
        return RowPlan([], (mask[:0], *rest))
    low, high = int(rows[0]), int(rows[-1]) + 1
    return RowPlan([(low, high)], (mask[low:high], *rest))


def _row_numbers(rows: NDArray[Any], count: int) -> NDArray[np.int64]:
    if not rows.size:
        rows = rows.astype(np.int64)
    if rows.dtype.kind not in "iu":
        raise IndexError("rows are selected by integers, slices, lists of integers, masks and `...`")
    wrong = rows[(rows < -count) | (rows >= count)]
    if wrong.size:
        raise IndexError(f"row {wrong.flat[0]} is out of range: the tensor has {count} rows")
    numbers: NDArray[np.int64] = np.where(rows < 0, rows + count, rows).astype(np.int64)
    return numbers


def _picked(rows: NDArray[np.int64], rest: tuple[Any, ...], row_bytes: int) -> RowPlan:
    """Read runs of the selected rows; near runs are read as one."""
    known = np.unique(rows)
    if not len(known):
        return RowPlan([], (rows, *rest))
    gap = 1 + GAP_BYTES // max(1, row_bytes)
    cuts = np.flatnonzero(np.diff(known) > gap) + 1
    runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(known, cuts)]
    lows = np.array([low for low, _ in runs])
    begins = np.cumsum([0, *(high - low for low, high in runs[:-1])])
    run_of = np.searchsorted(lows, rows, side="right") - 1
    places = rows - lows[run_of] + begins[run_of]
    return RowPlan(runs, (int(places) if rows.ndim == 0 else places, *rest))


def taken(values: Array, index: Any) -> Any:
    """Return `values[index]` as an array that can be written to and holds no other rows in memory."""
    found = values[index]
    if isinstance(found, np.ndarray) and (not found.flags.writeable or found.nbytes < values.nbytes):
        return found.copy()
    return found
