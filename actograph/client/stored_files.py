"""Tensors in a session's safetensors files: rows as stored bytes, by hook name.

Works on any `read_at`: local files (pread) or ranges of an HTTP resource.
"""

import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actograph import tensor_files
from actograph.client.row_index import IndexedRows
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


class StoredTensor(IndexedRows):
    """A tensor `[rows, ...]` in one file, or in the shards of several."""

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


class SessionFiles:
    """Stored tensors of one session by hook name.

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
        self._tensors: dict[str, StoredTensor] = {}
        for hook, by_start in found.items():
            end, parts = 0, []
            for start, (stop, read_at, entry) in sorted(by_start.items(), key=lambda item: item[0]):
                if start != end:
                    raise StoreDamaged(f"{hook}: rows {end}:{start} are missing; is a shard absent?")
                end = stop
                parts.append((read_at, entry))
            self._tensors[hook] = StoredTensor(parts)
        if TOKEN_IDS not in self._tensors:
            raise StoreDamaged("no file contains token_ids: the last shard is missing")

    def __iter__(self) -> Iterator[str]:
        """Yield the names of hooks."""
        return (name for name in self._tensors if name not in (TOKEN_IDS, ROW_POSITIONS))

    def __getitem__(self, name: str) -> StoredTensor:
        """Return a hook's tensor, `token_ids` or `row_positions`.

        Raises:
            NotFound: no file contains it.
        """
        if name not in self._tensors:
            raise NotFound(f"the session's files have no tensor {name}")
        return self._tensors[name]

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """The `[P + G]` token ids of prompt and generation."""
        return self._whole(TOKEN_IDS)

    @property
    def row_positions(self) -> NDArray[np.int64] | None:
        """Token indices of rows that were selected one by one; None if all tensors have consecutive rows."""
        return self._whole(ROW_POSITIONS) if ROW_POSITIONS in self._tensors else None

    def _whole(self, name: str) -> NDArray[np.int64]:
        tensor = self._tensors[name]
        return tensor.read(0, len(tensor)).copy()
