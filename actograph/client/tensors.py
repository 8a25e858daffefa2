"""Lazy tensors: read rows of a session's files without loading the files, with numpy alone.

    session = open_folder("sessions/ses_...")
    session["resid_post.8"][-1]  # the last row, as float32
    session.token_ids

Works on any `read_at`: local files (pread) or ranges of an HTTP resource.
"""

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph import tensor_files
from actograph.contract.errors import NotFound, StoreDamaged
from actograph.tensor_files import Array, ReadAt, TensorEntry

TOKEN_IDS = "token_ids"
ROW_POSITIONS = "row_positions"


class LocalFile:
    """A `read_at` for a local file. Threads may share it: reads are positioned."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._fd = fd
        self.size = os.fstat(fd).st_size
        self.close = weakref.finalize(self, os.close, fd)

    def __call__(self, offset: int, length: int) -> bytes:
        pieces = []
        while length:
            piece = os.pread(self._fd, length, offset)
            if not piece:
                break
            pieces.append(piece)
            offset, length = offset + len(piece), length - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class IndexedRows:
    """Shape and dtype of a tensor `[rows, ...]` whose rows are read when they are indexed."""

    def __init__(self, stored_dtype: str, shape: Sequence[int]) -> None:
        self.stored_dtype = stored_dtype
        self.shape: tuple[int, ...] = tuple(shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of returned arrays."""
        bits = tensor_files.NUMPY_DTYPES[self.stored_dtype]
        return np.dtype("<f4") if self.stored_dtype == "BF16" else bits

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def rows_of(self, index: int | slice) -> tuple[int, int, Any]:
        """Return the rows [low, high) to read, and the index to apply to them.

        Raises:
            IndexError: there is no such row.
        """
        selected = range(len(self))[index]
        if isinstance(selected, int):
            return selected, selected + 1, 0
        if not selected:
            return 0, 0, slice(None)
        low, high = min(selected[0], selected[-1]), max(selected[0], selected[-1]) + 1
        return low, high, slice(None, None, selected.step)


class LazyTensor(IndexedRows):
    """A tensor `[rows, ...]` whose rows are read when they are indexed.

    Index with an int (one row) or a slice (rows). bfloat16 is converted to float32, which is exact; other
    dtypes are kept. `np.asarray(tensor)` reads all rows.
    """

    def __init__(self, parts: list[tuple[ReadAt, TensorEntry]]) -> None:
        first = parts[0][1]
        self._parts = parts
        self._ranges: list[tuple[int, int]] = []
        rows = 0
        for _, entry in parts:
            if entry.dtype != first.dtype or entry.shape[1:] != first.shape[1:] or not entry.shape:
                raise StoreDamaged("the shards of a tensor differ in dtype or width")
            self._ranges.append((rows, rows + entry.shape[0]))
            rows += entry.shape[0]
        super().__init__(first.dtype, (rows, *first.shape[1:]))

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        return sum(entry.stop - entry.start for _, entry in self._parts)

    def __getitem__(self, index: int | slice) -> Array:
        low, high, then = self.rows_of(index)
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

    def __repr__(self) -> str:
        return f"LazyTensor(shape={list(self.shape)}, stored as {self.stored_dtype})"

    def read(self, start: int, stop: int) -> Array:
        """Read rows [start, stop) as numbers.

        Raises:
            RangeNotSatisfiable: the tensor has no such rows.
            StoreDamaged: the file is too short.
        """
        shape = (stop - start, *self.shape[1:])
        return tensor_files.value_array(self.stored_dtype, shape, self.read_bytes(start, stop))

    def read_bytes(self, start: int, stop: int) -> bytes:
        """Read rows [start, stop) as stored."""
        tensor_files.check_rows(start, stop, len(self))
        pieces = []
        for index, low, high in tensor_files.overlaps(self._ranges, start, stop):
            read_at, entry = self._parts[index]
            length = (high - low) * entry.row_bytes
            piece = read_at(entry.start + low * entry.row_bytes, length) if length else b""
            if len(piece) != length:
                raise StoreDamaged(f"the file is truncated: {len(piece)} of {length} bytes could be read")
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class SessionTensors(Mapping[str, LazyTensor]):
    """Tensors of one session by hook name.

    `files`: a reader and the size, if known, of each safetensors file, in any order.

    Raises:
        StoreDamaged: an invalid header, or a missing shard.
    """

    def __init__(self, files: Mapping[str, tuple[ReadAt, int | None]]) -> None:
        found: dict[str, dict[int, tuple[int, ReadAt, TensorEntry]]] = {}
        self.metadata: dict[str, str] = {}
        for read_at, size in files.values():
            header = tensor_files.read_header(read_at, size)
            self.metadata.update(header.metadata)
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
            self._tensors[hook] = LazyTensor(parts)
        if TOKEN_IDS not in self._tensors:
            raise StoreDamaged("no file contains token_ids: the last shard is missing")
        self._token_ids = self._tensors.pop(TOKEN_IDS)
        self._row_positions = self._tensors.pop(ROW_POSITIONS, None)

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """The `[P + G]` token ids of prompt and generation."""
        return self._token_ids.read(0, len(self._token_ids))

    @property
    def row_positions(self) -> NDArray[np.int64] | None:
        """Token indices of rows that were selected one by one; None if all tensors have consecutive rows.

        The rows of a tensor are the last `len(tensor)` of these tokens.
        """
        if self._row_positions is None:
            return None
        return self._row_positions.read(0, len(self._row_positions))

    def stored(self, name: str) -> LazyTensor:
        """Return a hook's tensor, `token_ids` or `row_positions`.

        Raises:
            NotFound: no file contains it.
        """
        if name == TOKEN_IDS:
            return self._token_ids
        found = self._row_positions if name == ROW_POSITIONS else self._tensors.get(name)
        if found is None:
            raise NotFound(f"the session's files have no tensor {name}")
        return found

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
    files = {path.name: LocalFile(path) for path in paths}
    return SessionTensors({name: (file, file.size) for name, file in files.items()})
