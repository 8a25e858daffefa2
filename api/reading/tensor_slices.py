"""Rows of one stored tensor, in the requested format.

A small slice is one answer. A larger slice is read, converted and sent in pieces, so memory stays bounded.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from starlette.responses import Response, StreamingResponse

from actograph import tensor_files
from actograph.contract import hooks
from actograph.contract.errors import InvalidRequest, RangeNotSatisfiable
from storage.sessions.reader import SessionReader, TensorSlice

Format = Literal["safetensors", "npy", "json"]

TOKEN_IDS = "token_ids"
ROW_POSITIONS = "row_positions"
#: a JSON number takes about 20 bytes
MAX_JSON_VALUES = 1 << 18
#: stored bytes of a piece; a JSON number takes many times its stored bytes
PIECE_BYTES = 1 << 20
JSON_PIECE_BYTES = 128 << 10

_ROWS = re.compile(r"([0-9]{0,12}):([0-9]{0,12})")


@dataclass(frozen=True, kw_only=True)
class _Slice:
    """The requested rows."""

    session_id: str
    hook: str
    dtype: str
    #: shape of the slice; token ids and positions have one dimension
    shape: tuple[int, ...]
    #: number of the first row, or its token
    first: int
    #: token of each row, if rows were selected individually
    tokens: list[int] | None
    #: rows [start, stop) of the slice
    read: Callable[[int, int], TensorSlice]

    @property
    def row_bytes(self) -> int:
        width = self.shape[1] if len(self.shape) > 1 else 1
        return width * tensor_files.itemsize(self.dtype)

    def pieces(self, most_bytes: int) -> Iterator[TensorSlice]:
        """Read the rows in pieces of at most `most_bytes`; a piece has one row at least."""
        at_once = max(1, most_bytes // max(1, self.row_bytes))
        for low in range(0, max(1, self.shape[0]), at_once):
            yield self.read(low, min(low + at_once, self.shape[0]))


def answer(reader: SessionReader, name: str, rows: str | None, form: Format) -> Response:
    """Answer with rows `a:b` of the tensor of hook `name`; all rows by default.

    Raises:
        NotFound: the session has no such tensor.
        RangeNotSatisfiable: the tensor does not have these rows.
        InvalidRequest: `rows` cannot be read, or has more values than JSON may have.
        StoreDamaged: the stored files are missing or cut off, or contradict the manifest.
    """
    found = _find(reader, name, rows)
    if form == "json":
        _check_values(found)
    elif form == "npy" and found.dtype.startswith("F8"):
        raise InvalidRequest(f"numpy has no {found.dtype}; ask for format=safetensors", param="format")
    piece_bytes = JSON_PIECE_BYTES if form == "json" else PIECE_BYTES
    media_type = "application/json" if form == "json" else "application/octet-stream"
    headers = {"X-Tensor-Dtype": found.dtype, "X-Tensor-First-Row": str(found.first)}
    if found.shape[0] * found.row_bytes <= piece_bytes:
        data = b"".join(_encoded(found, form, piece_bytes))
        return Response(data, headers=headers, media_type=media_type)
    if form != "json":
        headers["Content-Length"] = str(_size(found, form))
    pieces = _encoded(found, form, piece_bytes)
    begun = chain([next(pieces), next(pieces)], pieces)  # the header, and the first rows
    return StreamingResponse(begun, headers=headers, media_type=media_type)


def _find(reader: SessionReader, name: str, rows: str | None) -> _Slice:
    # savepoints keep their meaning from the time of recording
    hook = reader.manifest.resolved_hooks.get(name) or hooks.canonical(name) or name
    if hook not in reader.manifest.tensors and name in reader.manifest.tensors:
        hook = name
    numbers = _numbers(reader, hook)
    if numbers is not None:
        start, stop = _parse_rows(rows, len(numbers))
        chosen = numbers[start:stop]

        def of_numbers(low: int, high: int) -> TensorSlice:
            raw = b"".join(number.to_bytes(8, "little", signed=True) for number in chosen[low:high])
            return TensorSlice("I64", (high - low, 1), raw)

        return _Slice(
            session_id=reader.session_id,
            hook=hook,
            dtype="I64",
            shape=(stop - start,),
            first=start,
            tokens=None,
            read=of_numbers,
        )
    info = reader.tensor_info(hook)
    start, stop = _parse_rows(rows, info.shape[0])
    first, tokens = info.first_row + start, None
    if info.summary is not None:
        first = info.first_row
    elif info.position_offset is not None:
        tokens = list(reader.tokens_of_rows(hook)[start:stop])
        first = next(iter(tokens), info.first_row)
    return _Slice(
        session_id=reader.session_id,
        hook=hook,
        dtype=info.dtype,
        shape=(stop - start, info.shape[1]),
        first=first,
        tokens=tokens,
        read=lambda low, high: reader.rows(hook, start + low, start + high),
    )


def _encoded(found: _Slice, form: Format, piece_bytes: int) -> Iterator[bytes]:
    """Encode the answer in pieces: the header, then rows."""
    if form == "json":
        yield from _as_json(found, piece_bytes)
        return
    yield _header(found, form)
    for piece in found.pieces(piece_bytes):
        if form == "safetensors":
            yield piece.data
        else:
            yield tensor_files.value_array(piece.dtype, piece.shape, piece.data).tobytes()


def _size(found: _Slice, form: Format) -> int:
    """Size of the whole answer in a binary format."""
    # npy widens bfloat16
    wider = 2 if form == "npy" and found.dtype == "BF16" else 1
    return len(_header(found, form)) + found.shape[0] * found.row_bytes * wider


def _header(found: _Slice, form: Format) -> bytes:
    if form == "npy":
        return tensor_files.npy_header(found.dtype, found.shape)
    metadata = {"format": "pt", "session_id": found.session_id, "first_row": str(found.first)}
    return tensor_files.encode_header([(found.hook, found.dtype, found.shape)], metadata)


def _as_json(found: _Slice, piece_bytes: int) -> Iterator[bytes]:
    about: dict[str, Any] = {
        "object": "activation.tensor",
        "session_id": found.session_id,
        "hook": found.hook,
        "dtype": found.dtype,
        "shape": list(found.shape),
        "first_row": found.first,
        "tokens": found.tokens,
    }
    yield _json_text(about)[:-1] + b',"data":['
    behind = b""
    for piece in found.pieces(piece_bytes):
        if not piece.shape[0]:
            continue
        shape = piece.shape if len(found.shape) > 1 else piece.shape[:1]
        array = tensor_files.value_array(piece.dtype, shape, piece.data)
        yield behind + _json_text(tensor_files.json_rows(array))[1:-1]
        behind = b","
    yield b"]}"


def _json_text(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _parse_rows(text: str | None, count: int) -> tuple[int, int]:
    match = _ROWS.fullmatch(text if text is not None else ":")
    if match is None:
        raise InvalidRequest(
            f"rows: {text!r} is not start:stop, such as 0:10 (whole numbers, not negative)", param="rows"
        )
    start = int(match[1]) if match[1] else 0
    stop = int(match[2]) if match[2] else count
    if not 0 <= start <= stop <= count:
        raise RangeNotSatisfiable(f"rows {start}:{stop}: the tensor has rows 0:{count}", param="rows")
    return start, stop


def _check_values(found: _Slice) -> None:
    rows, width = found.shape[0], found.shape[1] if len(found.shape) > 1 else 1
    if rows * width > MAX_JSON_VALUES:
        at_once = MAX_JSON_VALUES // width
        advice = f"ask for {at_once} rows at a time, or for format=npy" if at_once else "ask for format=npy"
        raise InvalidRequest(f"{rows} rows of {width} values are too many for JSON: {advice}", param="rows")
    if found.dtype.startswith("F8"):
        raise InvalidRequest(f"JSON has no {found.dtype}; ask for format=safetensors", param="format")


def _numbers(reader: SessionReader, name: str) -> list[int] | None:
    """Token ids or row positions; None for other names."""
    if name == TOKEN_IDS:
        return reader.token_ids()
    return reader.row_positions() if name == ROW_POSITIONS else None
