"""Rows of hooks in an .npz file or in a session's folder."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.errors import InvalidDataset, InvalidRequest

Array = NDArray[Any]


@contextmanager
def open_arrays(path: Path) -> Iterator[Any]:
    """Open an .npz file as a mapping that reads an array when asked for it.

    Raises:
        InvalidDataset: it is no .npz file.
    """
    try:
        arrays = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidDataset(f"{path}: not an .npz file: {error}") from None
    if not isinstance(arrays, np.lib.npyio.NpzFile):
        raise InvalidDataset(f"{path}: not an .npz file, but a single array")
    with arrays:
        yield arrays


def read_array(path: Path, arrays: Any, name: str) -> Array:
    """Read an array of an open file.

    Raises:
        InvalidDataset: it is missing, or holds objects, which only pickle could read.
    """
    if name not in arrays:
        raise InvalidDataset(f"{path}: no array {name!r}; the file has {', '.join(arrays) or 'nothing'}")
    try:
        return np.asarray(arrays[name])
    except (ValueError, zipfile.BadZipFile) as error:
        raise InvalidDataset(f"{path}: array {name!r} cannot be read: {error}") from None


def chosen_hooks(known: list[str], chosen: list[str] | None, path: Path) -> list[str]:
    """Return the chosen hooks, or all.

    Raises:
        InvalidRequest: one is unknown, or there is none.
    """
    if unknown := [name for name in chosen or () if name not in known]:
        raise InvalidRequest(f"{path} has no rows of {unknown[0]}; it has: {', '.join(known)}")
    if not known:
        raise InvalidRequest(f"{path} has no rows of a hook in common")
    return chosen or known
