"""The safetensors layout, read and written by byte range with numpy alone.

A file is an unsigned 64-bit little-endian length N, N bytes of JSON, then the tensors' bytes:
https://github.com/huggingface/safetensors#format. All rules of that page are checked before a
tensor is read. numpy has no bfloat16: such tensors are uint16.
"""

import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.errors import NotFound, RangeNotSatisfiable, StoreDamaged
from actograph.dtypes import DTYPES

#: reads `length` bytes at `offset`, and fewer only at the end of the file
ReadAt = Callable[[int, int], bytes]
Array = NDArray[Any]

#: the limit of the reference implementation
MAX_HEADER_BYTES = 100_000_000
ALIGNMENT = 8
_HEAD_BYTES = 16 << 10  # one first read that holds nearly every header
_INDEX_NAME = re.compile(r"^(?P<hook>.+)\[(?P<start>\d+):(?P<stop>\d+)\]$")

#: safetensors name -> numpy dtype that holds the same bytes
NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {name: dtype.bits for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Place of one tensor: bytes [start, stop) of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one index of the first axis."""
        return math.prod(self.shape[1:]) * itemsize(self.dtype)

    def byte_range(self, start: int, stop: int) -> tuple[int, int]:
        """(offset, length) of rows [start, stop) in the file. Raises RangeNotSatisfiable."""
        check_rows(start, stop, self.rows)
        return self.start + start * self.row_bytes, (stop - start) * self.row_bytes


@dataclass(frozen=True, slots=True)
class TensorFileHeader:
    """Contents of a file, tensors in the order of their bytes."""

    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    data_start: int

    def entry(self, name: str) -> TensorEntry:
        """Return the tensor of this name. Raises NotFound."""
        if name not in self.tensors:
            raise NotFound(f"the file has no tensor {name}")
        return self.tensors[name]


def itemsize(dtype: str) -> int:
    """Bytes of one element. Raises StoreDamaged for an unknown dtype."""
    if dtype not in NUMPY_DTYPES:
        raise StoreDamaged(f"unknown tensor dtype {dtype!r}")
    return NUMPY_DTYPES[dtype].itemsize


def read_header(read_at: ReadAt, file_bytes: int | None = None) -> TensorFileHeader:
    """Read and check a file's header; a single read is enough if `file_bytes` is known.

    Raises:
        StoreDamaged: the header is invalid, or the tensors do not fill the file exactly (if `file_bytes`
            is known).
    """
    head = read_at(0, 8 if file_bytes is None else min(_HEAD_BYTES, file_bytes))
    if len(head) < 8:
        raise StoreDamaged(f"a tensor file of {len(head)} bytes is too short to have a header")
    length = int.from_bytes(head[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise StoreDamaged(f"the tensor file claims a header of {length} bytes; at most {MAX_HEADER_BYTES}")
    if file_bytes is not None and 8 + length > file_bytes:
        raise StoreDamaged(f"the header of {length} bytes is longer than the file of {file_bytes} bytes")
    body = head[8 : 8 + length]
    if len(body) < length:
        body += read_at(8 + len(body), length - len(body))
    if len(body) != length:
        raise StoreDamaged(f"the tensor file ends within its header ({len(body)} of {length} bytes)")
    return _parse_header(body, file_bytes)


def _parse_header(body: bytes, file_bytes: int | None) -> TensorFileHeader:
    """Check the JSON part of a header, `body`, which begins at byte 8 of the file."""
    if not body.startswith(b"{"):
        raise StoreDamaged("the header of the tensor file does not begin with '{'")
    try:
        fields = json.loads(body.decode("utf-8"), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(f"the header of the tensor file is not valid JSON: {error}") from error
    data_start = 8 + len(body)
    metadata = fields.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise StoreDamaged("__metadata__ of the tensor file is not a map of strings to strings")
    entries = {name: _entry(name, fields[name], data_start) for name in fields}
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)))
    end = data_start
    for name, entry in entries.items():
        if entry.start != end:
            raise StoreDamaged(f"tensor {name} begins at byte {entry.start}, not at {end}: a hole or overlap")
        end = entry.stop
    if file_bytes is not None and end != file_bytes:
        raise StoreDamaged(f"the tensors end at byte {end} of a file of {file_bytes} bytes")
    return TensorFileHeader(entries, metadata, data_start)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name occurs twice")
    return fields


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _entry(name: str, field: object, data_start: int) -> TensorEntry:
    if not isinstance(field, dict) or field.keys() != {"dtype", "shape", "data_offsets"}:
        raise StoreDamaged(f"tensor {name}: the header must give dtype, shape and data_offsets alone")
    dtype, shape, offsets = field["dtype"], field["shape"], field["data_offsets"]
    if not isinstance(dtype, str):
        raise StoreDamaged(f"tensor {name}: dtype is not a string")
    if not isinstance(shape, list) or not all(map(_natural, shape)):
        raise StoreDamaged(f"tensor {name}: shape is not a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_natural, offsets)):
        raise StoreDamaged(f"tensor {name}: data_offsets is not a pair of offsets")
    begin, end = offsets
    size = math.prod(shape) * itemsize(dtype)
    if end - begin != size:
        raise StoreDamaged(f"tensor {name}: {end - begin} bytes for {dtype} {shape}, which takes {size}")
    return TensorEntry(dtype, tuple(shape), data_start + begin, data_start + end)


def check_rows(start: int, stop: int, rows: int) -> None:
    """Raise RangeNotSatisfiable unless 0 <= start <= stop <= rows."""
    if not 0 <= start <= stop <= rows:
        raise RangeNotSatisfiable(f"rows {start}:{stop} lie outside the tensor's 0:{rows}", param="rows")


def overlaps(parts: Sequence[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(index of the part, first row, last row + 1 within that part) for rows [start, stop).

    `parts` are [start, stop) row ranges that follow each other without a gap.
    """
    for index, (first, last) in enumerate(parts):
        low, high = max(start, first), min(stop, last)
        if low < high:
            yield index, low - first, high - first


def shard_tensor_name(hook: str, start: int, stop: int) -> str:
    """The tensor name of rows [start, stop) of a hook in a shard."""
    return f"{hook}[{start}:{stop}]"


def parse_shard_tensor_name(name: str) -> tuple[str, int, int] | None:
    """(hook, start, stop) of a name by `shard_tensor_name`, or None for other names."""
    m = _INDEX_NAME.match(name)
    return (m["hook"], int(m["start"]), int(m["stop"])) if m else None


def encode_header(
    tensors: Sequence[tuple[str, str, Sequence[int]]],
    metadata: Mapping[str, str] | None = None,
    *,
    at_least: int = 0,
) -> bytes:
    """Return the first bytes of a file for tensors (name, dtype, shape) in the order of their bytes.

    They are padded with spaces to a multiple of 8 bytes, or to exactly `at_least` if they are shorter.
    Readers that map a file need each tensor aligned to its element; the caller chooses the order for it.
    """
    fields: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, dtype, shape in tensors:
        if name in fields or name == "__metadata__":
            raise ValueError(f"tensor name {name!r} occurs twice or is reserved")
        end = offset + math.prod(shape) * itemsize(dtype)
        fields[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    length = 8 + len(body)
    length = at_least if length <= at_least else length + -length % ALIGNMENT
    return (length - 8).to_bytes(8, "little") + body.ljust(length - 8)


def raw_array(dtype: str, shape: Sequence[int], data: bytes | memoryview) -> Array:
    """The bytes as a read-only array, without a copy; bfloat16 as uint16."""
    itemsize(dtype)
    return np.frombuffer(data, dtype=NUMPY_DTYPES[dtype]).reshape(tuple(shape))


def value_array(dtype: str, shape: Sequence[int], data: bytes | memoryview) -> Array:
    """The bytes as numbers, see `numbers_of`."""
    return numbers_of(dtype, raw_array(dtype, shape, data))


def numbers_of(dtype: str, raw: Array) -> Array:
    """A `raw_array` as numbers; bfloat16 is converted to float32, which is exact.

    Raises:
        StoreDamaged: these are 8-bit floats: stored rows of them are read with their scales, see `dtypes`.
    """
    if dtype.startswith("F8"):
        raise StoreDamaged(f"numpy cannot represent {dtype} without the scales of its rows")
    return bfloat16_to_float32(raw) if dtype == "BF16" else raw


def bfloat16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Convert bfloat16, the upper half of the float32 of the same value."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def npy_header(dtype: str, shape: Sequence[int]) -> bytes:
    """The first bytes of an .npy file (format 1.0, no pickle), with the dtypes of `value_array`."""
    descr = np.lib.format.dtype_to_descr(value_array(dtype, (0,), b"").dtype)
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": descr, "fortran_order": False, "shape": tuple(shape)}
    )
    return buffer.getvalue()


def json_rows(array: Array) -> list[Any]:
    """Nested lists for a JSON reply; numbers that JSON lacks (NaN, infinities) become null."""
    finite = np.isfinite(array)
    if not finite.all():
        array = array.astype(object)
        array[~finite] = None
    rows: list[Any] = array.tolist()
    return rows
