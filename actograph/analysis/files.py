"""Arrays by name in .npz and .safetensors files."""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.errors import InvalidDataset, StoreDamaged
from actograph.tensor_files import TensorEntry, TensorFileHeader, read_header, value_array

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
    """One tensor of a .safetensors file, read when asked for; bfloat16 becomes float32."""

    path: Path
    entry: TensorEntry

    def read(self) -> Array:
        return self._read(self.entry.shape, self.entry.start, self.entry.stop - self.entry.start)

    def rows(self, start: int, stop: int) -> Array:
        """Read rows [start, stop) of the first axis."""
        return self._read((stop - start, *self.entry.shape[1:]), *self.entry.byte_range(start, stop))

    def _read(self, shape: tuple[int, ...], offset: int, length: int) -> Array:
        with self.path.open("rb") as file:
            file.seek(offset)
            return value_array(self.entry.dtype, shape, file.read(length))


def stored_arrays(path: Path) -> dict[str, StoredArray]:
    """The tensors of a .safetensors file by name. Raises InvalidDataset if it is none."""
    return {name: StoredArray(path, entry) for name, entry in _header(path).tensors.items()}


def _header(path: Path) -> TensorFileHeader:
    def read_at(offset: int, length: int) -> bytes:
        file.seek(offset)
        return file.read(length)

    with path.open("rb") as file:
        try:
            return read_header(read_at, path.stat().st_size)
        except StoreDamaged as error:
            raise InvalidDataset(f"{path}: {error.message}") from None
