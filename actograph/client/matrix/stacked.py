"""Files with one array per layer, [batch, sequence, width], as many analysis scripts expect them."""

import json
import shutil
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict

import numpy as np

from actograph.client.matrix.matrix import SEVERAL_TOKENS, Matrix
from actograph.contract import hooks
from actograph.contract.errors import InvalidRequest
from actograph.tensor_files import DTYPE_NAMES, Array, encode_header

#: point -> its name in stacked files
POINT_NAMES = {"attn_in": "ln_attn", "mlp_in": "ln_mlp"}
SUFFIXES = (".safetensors", ".npz")


class StackOptions(TypedDict, total=False):
    """Options of `Jobs.stack`.

    Attributes:
        points: points whose layers are written; by default `attn_in` and `mlp_in`.
        max_bytes: most bytes of one array's rows, by default 4 GiB.
        progress: show a bar.
    """

    points: Sequence[str]
    max_bytes: int
    progress: bool


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A written file.

    Attributes:
        batch: number of sessions, oldest first.
        sequence: tokens of the longest session; shorter ones end with zeros.
        layers: layers of the file.
        arrays: names of the layers' arrays.
    """

    path: Path
    batch: int
    sequence: int
    layers: list[int]
    arrays: list[str]


def stacked_hooks(captured: Iterable[str], points: Iterable[str]) -> dict[str, str]:
    """Hooks of these points with a layer -> names of their arrays, by layer.

    Raises:
        InvalidRequest: a point was not captured in any layer.
    """
    chosen, names = list(points), list(captured)
    found = {
        name: f"layer_{hooks.layer_of(name)}_{POINT_NAMES.get(point, point)}"
        for name in names
        if (point := hooks.point_of(name)) in chosen and hooks.layer_of(name) is not None
    }
    if missing := [point for point in chosen if point not in {hooks.point_of(name) for name in found}]:
        raise InvalidRequest(f"no layer of {missing[0]} was captured; captured are {', '.join(names[:8])}")
    return dict(sorted(found.items(), key=lambda item: (hooks.layer_of(item[0]) or 0, item[1])))


class StackWriter:
    """Writes a stacked file array by array. The file appears when all of it is written.

    Args:
        path: ends with .safetensors or .npz.
        metadata: texts for the header of a .safetensors file.

    Raises:
        InvalidRequest: the suffix is another one, or there is no such folder.
    """

    def __init__(self, path: Path, metadata: Mapping[str, str]) -> None:
        if path.suffix not in SUFFIXES:
            raise InvalidRequest(f"{path}: the name must end with {' or '.join(SUFFIXES)}")
        if not path.parent.is_dir():
            raise InvalidRequest(f"there is no folder {path.parent}")
        self.path = path
        self._part = path.with_name(f"{path.name}.part")
        self._metadata = dict(metadata)
        self._raw = self._part.open("wb")
        self._zip = zipfile.ZipFile(self._raw, "w") if path.suffix == ".npz" else None
        self._entries: list[tuple[str, str, tuple[int, ...]]] = []
        #: sessions of the rows of the first matrix, and their places: session's number and token
        self._session_ids = np.zeros(0, object)
        self._places: tuple[Array, Array] | None = None
        self._layers: dict[int, None] = {}
        self._arrays: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if self._zip is not None:
            self._zip.close()
        self._raw.close()
        self._part.unlink(missing_ok=True)

    def add(self, name: str, matrix: Matrix) -> None:
        """Add the rows of one hook as an array.

        Raises:
            InvalidRequest: a session has no rows of the hook, or rows of other tokens than the first hook; or
                the rows are summaries.
        """
        if matrix.skipped:
            one = matrix.skipped[0]
            raise InvalidRequest(f"session {one.session_id} has no rows of {matrix.hook}: {one.reason}")
        if (matrix.tokens == SEVERAL_TOKENS).any():
            raise InvalidRequest(f"{matrix.hook} was stored as a summary over tokens")
        self._begin(matrix)
        assert self._places is not None
        batch, token = self._places
        same_rows = np.array_equal(matrix.session_id, self._session_ids)
        if not same_rows or not np.array_equal(matrix.tokens, token):
            raise InvalidRequest(f"{matrix.hook} has rows of other tokens than the first hook")
        shape = (int(batch.max()) + 1, self.sequence, matrix.features.shape[1])
        stacked = np.zeros(shape, matrix.features.dtype)
        stacked[batch, token] = matrix.features
        self._write(name, stacked)
        self._arrays.append(name)
        layer = hooks.layer_of(matrix.hook)
        if layer is not None:
            self._layers[layer] = None

    @property
    def sequence(self) -> int:
        """Tokens of the longest session."""
        assert self._places is not None
        return int(self._places[1].max()) + 1

    def _begin(self, matrix: Matrix) -> None:
        """Note the rows of the first matrix, and write the mask of its tokens."""
        if self._places is not None:
            return
        self._session_ids = matrix.session_id
        numbers = {one: number for number, one in enumerate(dict.fromkeys(matrix.session_id))}
        batch = np.array([numbers[one] for one in matrix.session_id], np.int64)
        self._places = (batch, matrix.tokens)
        mask = np.zeros((len(numbers), self.sequence), np.int64)
        mask[self._places] = 1
        first = np.unique(batch, return_index=True)[1]
        self._write("attention_mask", mask)
        self._write("sample_index", matrix.sample_index[first])

    def finish(self) -> Stack:
        """Complete the file and put it in place."""
        assert self._places is not None
        layers = list(self._layers)
        if self._zip is not None:
            self._write("layers_extracted", np.array(layers, np.int64))
            self._zip.close()
            self._raw.close()
            self._part.replace(self.path)
        else:
            self._raw.close()
            self._with_header(layers)
        return Stack(
            path=self.path,
            batch=int(self._places[0].max()) + 1,
            sequence=self.sequence,
            layers=layers,
            arrays=list(self._arrays),
        )

    def _write(self, name: str, array: Array) -> None:
        if self._zip is not None:
            with self._zip.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
            return
        self._entries.append((name, DTYPE_NAMES[str(array.dtype)], array.shape))
        self._raw.write(np.ascontiguousarray(array).data)

    def _with_header(self, layers: list[int]) -> None:
        """Write header and tensors to the file. Until then the tensors' sizes are unknown."""
        metadata = {**self._metadata, "layers_extracted": json.dumps(layers)}
        whole = self.path.with_name(f"{self.path.name}.whole")
        try:
            with whole.open("wb") as target, self._part.open("rb") as source:
                target.write(encode_header(self._entries, metadata))
                shutil.copyfileobj(source, target, 1 << 22)
            whole.replace(self.path)
        finally:
            whole.unlink(missing_ok=True)
