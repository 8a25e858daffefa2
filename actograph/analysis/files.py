"""Arrays by name in .npz and .safetensors files."""

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.errors import InvalidDataset, StoreDamaged
from actograph.dtypes import DTYPES, scales_of, unscaled
from actograph.tensor_files import (
    TensorEntry,
    TensorFileHeader,
    itemsize,
    parse_shard_tensor_name,
    raw_array,
    read_header,
    shard_tensor_name,
    value_array,
)

Array = NDArray[Any]
SUFFIXES = (".npz", ".safetensors")


def read_arrays(path: Path) -> dict[str, Array]:
    """Read all arrays of a file, or of the files of a folder; bfloat16 becomes float32.

    In a folder a file with one array gives its own name to it, such as `layer_3_ln_attn` of
    `layer_3_ln_attn.npz`. Other files are left alone.

    Raises:
        InvalidDataset: the file is neither .npz nor .safetensors, is damaged, holds objects, or is empty; or
            two arrays of a folder have one name.
    """
    if path.is_dir():
        return _of_folder(path)
    if path.suffix == ".safetensors":
        found = {name: stored.read() for name, stored in stored_arrays(path).items()}
    elif path.suffix == ".npz":
        found = _npz(path)
    else:
        raise InvalidDataset(f"{path}: the name must end with .npz or .safetensors")
    if not found:
        raise InvalidDataset(f"{path} has no arrays")
    return found


def _of_folder(folder: Path) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for path in sorted(one for one in folder.iterdir() if one.suffix in SUFFIXES):
        arrays = read_arrays(path)
        if len(arrays) == 1:
            arrays = dict.fromkeys([path.stem], next(iter(arrays.values())))
        if twice := sorted(found.keys() & arrays.keys()):
            raise InvalidDataset(f"{path}: another file of the folder has an array {twice[0]!r}, too")
        found |= arrays
    if not found:
        raise InvalidDataset(f"{folder} has no files that end with {' or '.join(SUFFIXES)}")
    return found


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a .safetensors file; {} of other files, and of files without any.

    Raises:
        InvalidDataset: the header is damaged.
    """
    return dict(_header(path).metadata) if path.suffix == ".safetensors" else {}


def _npz(path: Path) -> dict[str, Array]:
    try:
        arrays = np.load(path, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise InvalidDataset(f"{path}: not an .npz file, but a single array")
        with arrays:
            return {name: arrays[name] for name in arrays}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidDataset(f"{path}: not an .npz file of numbers and texts: {error}") from None


@dataclass(frozen=True)
class StoredArray:
    """One tensor of a .safetensors file, read when asked for; bfloat16 becomes float32.

    Attributes:
        scales: of its rows, if they have one each.
    """

    path: Path
    entry: TensorEntry
    scales: TensorEntry | None = None

    def read(self) -> Array:
        return self.rows(0, self.entry.rows) if self.scales else self._read(self.entry, self.entry.shape, 0)

    def rows(self, start: int, stop: int) -> Array:
        """Read rows [start, stop) of the first axis."""
        shape = (stop - start, *self.entry.shape[1:])
        if self.scales is None:
            return self._read(self.entry, shape, start)
        return unscaled(
            self._read(self.entry, shape, start, bits=True), self._read(self.scales, (stop - start,), start)
        )

    def _read(self, entry: TensorEntry, shape: tuple[int, ...], start: int, *, bits: bool = False) -> Array:
        """Numbers of a shape from a row on, or their bits."""
        length = math.prod(shape) * itemsize(entry.dtype)
        with self.path.open("rb") as file:
            file.seek(entry.start + start * (entry.row_bytes if entry.shape else 0))
            return (raw_array if bits else value_array)(entry.dtype, shape, file.read(length))


def stored_arrays(path: Path) -> dict[str, StoredArray]:
    """The tensors of a .safetensors file by name. Raises InvalidDataset if it is none."""
    entries = _header(path).tensors
    scales = {
        name: _scales_name(name)
        for name, entry in entries.items()
        if DTYPES[entry.dtype].has_scales and _scales_name(name) in entries
    }
    own = [name for name in entries if name not in scales.values()]
    return {
        name: StoredArray(path, entries[name], entries[scales[name]] if name in scales else None)
        for name in own
    }


def _scales_name(name: str) -> str:
    shard = parse_shard_tensor_name(name)
    return scales_of(name) if shard is None else shard_tensor_name(scales_of(shard[0]), *shard[1:])


def _header(path: Path) -> TensorFileHeader:
    def read_at(offset: int, length: int) -> bytes:
        file.seek(offset)
        return file.read(length)

    with path.open("rb") as file:
        try:
            return read_header(read_at, path.stat().st_size)
        except StoreDamaged as error:
            raise InvalidDataset(f"{path}: {error.message}") from None
