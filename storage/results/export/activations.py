"""Activations in a sample file: shapes, or the beginning of every row."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from actograph import tensor_files
from actograph.contract import hooks
from actograph.contract.resources import TensorInfo
from actograph.tensor_files import Array
from storage.sessions.reader import SessionReader

Detail = Literal["none", "meta", "sampled"]

#: columns of each row that `sampled` shows
FEATURES = 50
#: bytes of rows that are read at once
_BLOCK_BYTES = 4 << 20


def described(tensors: Mapping[str, TensorInfo]) -> dict[str, dict[str, Any]]:
    """Flat hook name -> hook, shape, dtype and bytes."""
    found: dict[str, dict[str, Any]] = {}
    for hook, info in tensors.items():
        flat = hooks.flat_name(hook)
        fields = info.model_dump(exclude_none=True, exclude={"names"})
        found[hook if flat in found else flat] = {"hook": hook, "bytes": fields.pop("nbytes"), **fields}
    return found


def sampled(reader: SessionReader, tensors: Mapping[str, TensorInfo]) -> Iterator[bytes]:
    """A JSON object in blocks of rows: flat hook name -> the first features of every row.

    Numbers are the shortest decimals that read back as the stored ones; NaN and infinities are null.

    Raises:
        StoreDamaged: the session's files are not what its manifest says.
    """
    yield b"{"
    for number, (flat, fields) in enumerate(described(tensors).items()):
        rows, width = fields["shape"]
        entry = {
            "format": "sampled_tensor",
            "hook": fields["hook"],
            "shape": fields["shape"],
            "dtype": fields["dtype"],
            "first_row": fields["first_row"],
            "sample_info": f"first_{FEATURES}_features",
        }
        separator = ",\n  " if number else "\n  "
        yield f"{separator}{json.dumps(flat)}: {json.dumps(entry)[:-1]}, ".encode() + b'"data": ['
        block = max(1, _BLOCK_BYTES // max(1, width * tensor_files.itemsize(fields["dtype"])))
        for start in range(0, rows, block):
            piece = reader.rows(fields["hook"], start, min(start + block, rows))
            values = tensor_files.value_array(piece.dtype, piece.shape, piece.data)[:, :FEATURES]
            yield (b", " if start else b"") + ", ".join(_json_rows(values)).encode()
        yield b"]}"
    yield b"\n }"


def _json_rows(values: Array) -> Iterator[str]:
    texts = values.astype(str)
    if values.dtype.kind == "f":
        texts = np.where(np.isfinite(values), texts, "null")
    for row in texts:
        yield f"[{', '.join(row.tolist())}]"
