"""Arrays by name in .npz and .safetensors files."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph import tensor_files
from actograph.contract.errors import InvalidDataset, StoreDamaged

Array = NDArray[Any]


def read_arrays(path: Path) -> dict[str, Array]:
    """Read all arrays of a file; bfloat16 becomes float32.

    Raises:
        InvalidDataset: the file is neither .npz nor .safetensors, is damaged, holds objects, or is empty.
    """
    if path.suffix == ".safetensors":
        found = _safetensors(path)
    elif path.suffix == ".npz":
        found = _npz(path)
    else:
        raise InvalidDataset(f"{path}: the name must end with .npz or .safetensors")
    if not found:
        raise InvalidDataset(f"{path} has no arrays")
    return found


def _npz(path: Path) -> dict[str, Array]:
    try:
        arrays = np.load(path, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise InvalidDataset(f"{path}: not an .npz file, but a single array")
        with arrays:
            return {name: arrays[name] for name in arrays}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidDataset(f"{path}: not an .npz file of numbers and texts: {error}") from None


def _safetensors(path: Path) -> dict[str, Array]:
    with path.open("rb") as file:

        def read_at(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        try:
            header = tensor_files.read_header(read_at, path.stat().st_size)
            return {
                name: tensor_files.value_array(
                    entry.dtype, entry.shape, read_at(entry.start, entry.stop - entry.start)
                )
                for name, entry in header.tensors.items()
            }
        except StoreDamaged as error:
            raise InvalidDataset(f"{path}: {error.message}") from None
