"""Tensors of a session's folder: read rows of its files without loading the files, with numpy alone.

session = open_folder("sessions/ses_...")
session["resid_post.8"][-1]  # the last row, as float32
session.token_ids
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actograph.client.hook_names import absent
from actograph.client.manifests import MANIFEST_NAME, read_manifest
from actograph.client.stored_files import LocalFile, SessionFiles
from actograph.contract.errors import NotFound, StoreDamaged
from actograph.contract.hooks import find_stored
from actograph.contract.resources import TensorInfo

if TYPE_CHECKING:
    from actograph.client.blocking.row_tensor import RowTensor

__all__ = ["LocalFile", "SessionFiles", "SessionTensors", "open_folder"]


class SessionTensors(Mapping[str, "RowTensor"]):
    """Tensors of one session by hook name or alias, of the class that a client's sessions have.

    Attributes:
        hooks: shape, dtype and tokens of every tensor.
        metadata: strings in the headers of the files.
    """

    def __init__(self, files: SessionFiles, known: Mapping[str, TensorInfo] | None = None) -> None:
        self._files = files
        self.metadata = files.metadata
        self.hooks = {name: (known or {}).get(name) or _info(files, name) for name in files}

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """The `[P + G]` token ids of prompt and generation."""
        return self._files.token_ids

    @property
    def row_positions(self) -> NDArray[np.int64] | None:
        """Token indices of rows that were selected one by one; None if all tensors have consecutive rows.

        The rows of a tensor are the last `len(tensor)` of these tokens.
        """
        return self._files.row_positions

    def __getitem__(self, hook: str) -> "RowTensor":
        from actograph.client.blocking.row_tensor import RowTensor, StoredRows

        name = find_stored(hook, self.hooks)
        if name is None:
            raise absent(hook, self.hooks)
        return RowTensor(name, self.hooks[name], StoredRows(lambda: self._files))

    def __contains__(self, hook: Any) -> bool:
        return isinstance(hook, str) and find_stored(hook, self.hooks) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.hooks)

    def __len__(self) -> int:
        return len(self.hooks)


def open_folder(folder: str | os.PathLike[str]) -> SessionTensors:
    """Open a session's folder, written by `session.download`, `sessions pull` or the store.

    Raises:
        NotFound: the folder contains no safetensors file.
        StoreDamaged: a file is damaged or a shard is missing.
    """
    paths = sorted(Path(folder).glob("*.safetensors"))
    if not paths:
        raise NotFound(f"{folder} has no .safetensors file")
    files = {path.name: LocalFile(path) for path in paths}
    stored = SessionFiles({name: (file, file.size) for name, file in files.items()})
    return SessionTensors(stored, _known(Path(folder) / MANIFEST_NAME))


def _known(manifest: Path) -> Mapping[str, TensorInfo]:
    """Tensors in a manifest; the files alone have shapes and dtypes."""
    try:
        return read_manifest(manifest.read_bytes()).tensors
    except (OSError, StoreDamaged):
        return {}


def _info(files: SessionFiles, name: str) -> TensorInfo:
    tensor = files[name]
    return TensorInfo(shape=list(tensor.shape), dtype=tensor.stored_dtype, nbytes=tensor.nbytes)
