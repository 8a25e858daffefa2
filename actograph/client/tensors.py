"""Lazy tensors: rows that are read when they are indexed, with numpy alone.

They work on any reader of bytes: of local files or of HTTP resources.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph import tensor_files
from actograph.contract.errors import ActographError, StoreDamaged, package
from actograph.dtypes import DTYPES, read_as, unscaled_bytes
from actograph.short_texts import size
from actograph.tensor_files import Array, ReadAt, TensorEntry
from actograph.viewer.notebook import MOST_POINTS, summary_html

#: bytes that iteration reads at once
BLOCK_BYTES = 4 << 20
#: rows between two selected ones are read along if they have fewer bytes: a request costs more
GAP_BYTES = 64 << 10
TOKEN_IDS = "token_ids"
ROW_POSITIONS = "row_positions"
#: dtypes whose rows have a norm
FLOATS = ("F64", "F32", "F16", "BF16")


class LazyTensor:
    """A tensor `[rows, ...]` of one hook, of a service or of a folder. Its rows are read when it is indexed.

    Index it as a numpy array: only the rows that the first axis selects are read. The arrays are new and may
    be written to. bfloat16 is converted to float32, which is exact, and rows of float8 become float32,
    times their scales; other dtypes are kept.
    `np.asarray(tensor)` reads all rows, and `for row in tensor` reads them in blocks.
    """

    def __init__(
        self, hook: str, stored_dtype: str, shape: Sequence[int], read_rows: Callable[[int, int], bytes]
    ) -> None:
        """`read_rows`: reads rows [start, stop) as stored, or as float32 if they are stored with scales."""
        self.hook = hook
        self.stored_dtype = stored_dtype
        self.shape: tuple[int, ...] = tuple(shape)
        self._read_rows = read_rows

    @property
    def read_dtype(self) -> str:
        """The dtype of `read_bytes`: F32 for rows with scales, else the stored one."""
        return read_as(self.stored_dtype)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of returned arrays."""
        bits = tensor_files.NUMPY_DTYPES[self.read_dtype]
        return np.dtype("<f4") if self.read_dtype == "BF16" else bits

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"LazyTensor({self.hook}, shape={list(self.shape)}, stored as {self.stored_dtype})"

    def _repr_html_(self) -> str:
        """Its form and a line through the norms of its first rows, of which 4 MiB are read at most."""
        about = f"{self.hook} · {list(self.shape)} · stored as {self.stored_dtype}"
        count = min(len(self), MOST_POINTS, max(1, BLOCK_BYTES // max(1, self._row_bytes)))
        if not count or len(self.shape) != 2 or self.read_dtype not in FLOATS:
            return summary_html(about, None, "")
        try:
            rows = self[:count].astype(np.float64)
        except ActographError as error:
            return summary_html(about, None, "", [f"Its rows cannot be read: {error.message}"])
        single = self.shape[1] == 1
        numbers = (rows[:, 0] if single else np.linalg.norm(rows, axis=1)).astype(np.float32)
        name = f"{'values' if single else 'norms'} of rows 0 to {count - 1}"
        return summary_html(about, numbers, name, [f"Read for it: {size(count * self._row_bytes)}."])

    def __getitem__(self, index: Any) -> Any:
        found = tensor_files.numbers_of(self.read_dtype, self._indexed(index))
        return found[()] if found.ndim == 0 else found

    def __iter__(self) -> Iterator[Array]:
        at_once = max(1, BLOCK_BYTES // max(1, self._row_bytes))
        for low in range(0, len(self), at_once):
            yield from self[low : low + at_once]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("the rows are in a file: reading them always makes a new array")
        whole: Array = self[:]
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def torch(self, index: Any = ...) -> Any:
        """Return `tensor[index]` as a `torch.Tensor` in the stored dtype: bfloat16 stays bfloat16.

        Rows with scales are float32.

        Raises:
            PackageMissing: torch is not installed.
            StoreDamaged: torch has no such dtype.
        """
        torch = package("torch", "a torch tensor")
        kind = getattr(torch, DTYPES[self.read_dtype].torch, None)
        if kind is None:
            raise StoreDamaged(f"torch has no dtype {self.stored_dtype}")
        bits = self._indexed(index)
        # integers of the same size, which numpy and torch both have
        return torch.from_numpy(bits.view(f"i{bits.itemsize}")).view(kind).reshape(bits.shape)

    def read(self, start: int, stop: int) -> Array:
        """Read rows [start, stop) as numbers, which may be read-only.

        Raises:
            RangeNotSatisfiable: the tensor has no such rows.
            StoreDamaged: the file is too short.
        """
        return tensor_files.numbers_of(self.read_dtype, self._raw(start, stop))

    def read_bytes(self, start: int, stop: int) -> bytes:
        """Read rows [start, stop) in `read_dtype`. Raises the errors of `read`."""
        tensor_files.check_rows(start, stop, len(self))
        return self._read_rows(start, stop) if stop > start else b""

    @property
    def _row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * tensor_files.itemsize(self.read_dtype)

    def _raw(self, start: int, stop: int) -> Array:
        shape = (stop - start, *self.shape[1:])
        return tensor_files.raw_array(self.read_dtype, shape, self.read_bytes(start, stop))

    def _indexed(self, index: Any) -> Array:
        """Stored elements at an index of numpy's, in an array of their own. Raises IndexError."""
        parts = list(index) if isinstance(index, tuple) else [index]
        if not parts or parts[0] is None or parts[0] is ... or np.ndim(parts[0]) > 1:
            values = self._raw(0, len(self))
        elif isinstance(parts[0], slice):
            have, values = self._gathered(rows := np.arange(len(self))[parts[0]])
            values = values if np.array_equal(have, rows) else values[np.searchsorted(have, rows)]
            parts[0] = slice(None)
        else:
            have, values = self._gathered(rows := np.arange(len(self))[parts[0]])
            parts[0] = np.searchsorted(have, rows)
        found = np.asarray(values[tuple(parts)])
        own = found.flags.owndata and found.flags.writeable and found.flags.c_contiguous
        return found if own else found.copy()

    def _gathered(self, rows: Any) -> tuple[NDArray[np.int64], Array]:
        """Read these rows, and some between them: the numbers of what was read, ascending, and the rows."""
        wanted = np.unique(rows)
        if not wanted.size:
            return wanted, self._raw(0, 0)
        gap = 1 + GAP_BYTES // max(1, self._row_bytes)
        runs = np.split(wanted, np.flatnonzero(np.diff(wanted) > gap) + 1)
        read = [(int(run[0]), int(run[-1]) + 1) for run in runs]
        values = [self._raw(low, high) for low, high in read]
        numbers = np.concatenate([np.arange(low, high) for low, high in read])
        return numbers, values[0] if len(values) == 1 else np.concatenate(values)


def joined(
    hook: str, parts: Sequence[tuple[ReadAt, TensorEntry]], scales: LazyTensor | None = None
) -> LazyTensor:
    """One tensor from its shards, in order.

    Args:
        scales: of its rows, if they have one each.

    Raises:
        StoreDamaged: the shards differ, or scales are missing.
    """
    first = parts[0][1]
    ranges: list[tuple[int, int]] = []
    rows = 0
    for _, entry in parts:
        if entry.dtype != first.dtype or entry.shape[1:] != first.shape[1:] or not entry.shape:
            raise StoreDamaged("the shards of a tensor differ in dtype or width")
        ranges.append((rows, rows + entry.rows))
        rows += entry.rows

    def read_rows(start: int, stop: int) -> bytes:
        pieces = []
        for index, low, high in tensor_files.overlaps(ranges, start, stop):
            read_at, entry = parts[index]
            offset, length = entry.byte_range(low, high)
            piece = read_at(offset, length)
            if len(piece) != length:
                raise StoreDamaged(f"the file is truncated: {len(piece)} of {length} bytes could be read")
            pieces.append(piece)
        found = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if scales is None:
            return found
        return unscaled_bytes(found, scales.read_bytes(start, stop), first.shape[1])

    if DTYPES[first.dtype].has_scales and (scales is None or scales.shape != (rows, 1)):
        raise StoreDamaged(f"{hook}: its {rows} rows of {first.dtype} lack their scales")
    return LazyTensor(hook, first.dtype, (rows, *first.shape[1:]), read_rows)
