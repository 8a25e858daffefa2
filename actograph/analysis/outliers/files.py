"""Arrays named by layer in .npz and .safetensors files."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from actograph import tensor_files
from actograph.analysis.row_files import open_arrays, read_array
from actograph.contract.errors import InvalidDataset, StoreDamaged


def read_layers(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of a file; bfloat16 becomes float32.

    Raises:
        InvalidDataset: the file is neither .npz nor .safetensors, is damaged, or has no array.
    """
    if path.suffix == ".safetensors":
        found = _read_safetensors(path)
    elif path.suffix == ".npz":
        with open_arrays(path) as arrays:
            found = {name: read_array(path, arrays, name) for name in arrays}
    else:
        raise InvalidDataset(f"{path}: the name must end with .npz or .safetensors")
    if not found:
        raise InvalidDataset(f"{path} has no arrays")
    return found


def _read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    with path.open("rb") as file:

        def read_at(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        found = {}
        try:
            header = tensor_files.read_header(read_at, path.stat().st_size)
            for name, entry in header.tensors.items():
                data = read_at(entry.start, entry.stop - entry.start)
                found[name] = tensor_files.value_array(entry.dtype, entry.shape, data)
        except StoreDamaged as error:
            raise InvalidDataset(f"{path}: {error.message}") from None
    return found
