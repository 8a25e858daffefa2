"""Lazy tensors: read rows without loading the files, with numpy alone.

    session = open_folder("sessions/ses_...")
    session["resid_post.8"][-1]  # the last row, as float32
    session.token_ids

Works on any `read_at`: local files or ranges of an HTTP resource.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph import tensor_files
from actograph.client.errors import package
from actograph.contract.errors import NotFound, StoreDamaged
from actograph.tensor_files import Array, ReadAt, TensorEntry

TOKEN_IDS = "token_ids"
ROW_POSITIONS = "row_positions"
#: names in torch of dtypes that numpy lacks
_TORCH_NAMES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


class LazyTensor:
    """A tensor `[rows, ...]` of one hook, whose rows are read when they are indexed.

    Index with an int (one row) or a slice (rows), as in numpy. bfloat16 is converted to float32, which is
    exact; other dtypes are kept. `np.asarray(tensor)` reads all rows.
    """

    def __init__(
        self, hook: str, stored_dtype: str, shape: Sequence[int], read_rows: Callable[[int, int], bytes]
    ) -> None:
        """`read_rows`: reads rows [start, stop) as stored."""
        self.hook = hook
        self.stored_dtype = stored_dtype
        self.shape: tuple[int, ...] = tuple(shape)
        self._read_rows = read_rows

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of returned arrays."""
        bits = tensor_files.NUMPY_DTYPES[self.stored_dtype]
        return np.dtype("<f4") if self.stored_dtype == "BF16" else bits

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"LazyTensor({self.hook}, shape={list(self.shape)}, stored as {self.stored_dtype})"

    def __getitem__(self, index: int | slice) -> Array:
        low, high, then = self._range_of(index)
        array: Array = self.read(low, high)[then]
        return array

    def __iter__(self) -> Iterator[Array]:
        for row in range(len(self)):
            yield self[row]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("the rows are in a file: reading them always makes a new array")
        whole = self.read(0, len(self))
        return whole if dtype is None else whole.astype(dtype)

    def torch(self, index: int | slice = slice(None)) -> Any:
        """Return rows as a `torch.Tensor` in the stored dtype: bfloat16 stays bfloat16.

        Raises:
            PackageMissing: torch is not installed.
            StoreDamaged: torch has no such dtype.
        """
        low, high, then = self._range_of(index)
        torch = package("torch", "a torch tensor")
        kind = getattr(torch, _TORCH_NAMES.get(self.stored_dtype, self.dtype.name), None)
        if kind is None:
            raise StoreDamaged(f"torch has no dtype {self.stored_dtype}")
        shape, data = (high - low, *self.shape[1:]), bytearray(self.read_bytes(low, high))
        rows = torch.frombuffer(data, dtype=kind).reshape(shape) if data else torch.empty(shape, dtype=kind)
        if isinstance(then, slice) and then.step is not None and then.step < 0:
            return rows.flip(0)[:: -then.step]  # torch has no negative steps
        return rows[then]

    def read(self, start: int, stop: int) -> Array:
        """Read rows [start, stop) as numbers.

        Raises:
            RangeNotSatisfiable: the tensor has no such rows.
            StoreDamaged: the file is too short.
        """
        shape = (stop - start, *self.shape[1:])
        return tensor_files.value_array(self.stored_dtype, shape, self.read_bytes(start, stop))

    def read_bytes(self, start: int, stop: int) -> bytes:
        """Read rows [start, stop) as stored. Raises the errors of `read`."""
        tensor_files.check_rows(start, stop, len(self))
        return self._read_rows(start, stop) if stop > start else b""

    def _range_of(self, index: int | slice) -> tuple[int, int, Any]:
        """The rows [low, high) to read, and the index to apply to them. Raises IndexError."""
        selected = range(len(self))[index]
        if isinstance(selected, int):
            return selected, selected + 1, 0
        if not selected:
            return 0, 0, slice(None)
        low, high = min(selected[0], selected[-1]), max(selected[0], selected[-1]) + 1
        return low, high, slice(None, None, selected.step)


def _joined(hook: str, parts: Sequence[tuple[ReadAt, TensorEntry]]) -> LazyTensor:
    """One tensor from its shards, in order."""
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
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    return LazyTensor(hook, first.dtype, (rows, *first.shape[1:]), read_rows)


class SessionTensors(Mapping[str, LazyTensor]):
    """Tensors of one session by hook name.

    `files`: a reader and the size of each safetensors file, in any order.

    Raises:
        StoreDamaged: an invalid header, or a missing shard.
    """

    def __init__(self, files: Iterable[tuple[ReadAt, int]]) -> None:
        found: dict[str, dict[int, tuple[int, ReadAt, TensorEntry]]] = {}
        for read_at, size in files:
            header = tensor_files.read_header(read_at, size)
            for name, entry in header.tensors.items():
                hook, start, stop = tensor_files.parse_shard_tensor_name(name) or (name, 0, entry.rows)
                if stop - start != entry.rows or start in found.setdefault(hook, {}):
                    raise StoreDamaged(f"tensor {name} has {entry.rows} rows or occurs twice")
                found[hook][start] = (stop, read_at, entry)
        self._tensors: dict[str, LazyTensor] = {}
        for hook, by_start in found.items():
            end, parts = 0, []
            for start, (stop, read_at, entry) in sorted(by_start.items(), key=lambda item: item[0]):
                if start != end:
                    raise StoreDamaged(f"{hook}: rows {end}:{start} are missing; is a shard absent?")
                end = stop
                parts.append((read_at, entry))
            self._tensors[hook] = _joined(hook, parts)
        if TOKEN_IDS not in self._tensors:
            raise StoreDamaged("no file contains token_ids: the last shard is missing")
        self._numbers = {
            name: self._tensors.pop(name) for name in (TOKEN_IDS, ROW_POSITIONS) if name in self._tensors
        }

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """The `[P + G]` token ids of prompt and generation."""
        return self._numbers[TOKEN_IDS][:]

    @property
    def row_positions(self) -> NDArray[np.int64] | None:
        """Token indices of rows that were selected one by one; None if all tensors have consecutive rows.

        The rows of a tensor are the last `len(tensor)` of these tokens.
        """
        found = self._numbers.get(ROW_POSITIONS)
        return None if found is None else found[:]

    def __getitem__(self, hook: str) -> LazyTensor:
        return self._tensors[hook]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def open_folder(folder: str | os.PathLike[str]) -> SessionTensors:
    """Open a session's folder, written by `sessions pull` or by the store.

    Raises:
        NotFound: the folder contains no safetensors file.
        StoreDamaged: a file is damaged or a shard is missing.
    """
    paths = sorted(Path(folder).glob("*.safetensors"))
    if not paths:
        raise NotFound(f"{folder} has no .safetensors file")
    return SessionTensors((partial(_read_at, path), path.stat().st_size) for path in paths)


def _read_at(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)
