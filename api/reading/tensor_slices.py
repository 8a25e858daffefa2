"""Rows of one stored tensor, in the requested format.

Binary formats are read and sent in pieces, so memory stays bounded. JSON is small, and one answer.
"""

import json
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from starlette.responses import Response, StreamingResponse

from actograph import tensor_files
from actograph.contract import hooks
from actograph.contract.errors import InvalidRequest, RangeNotSatisfiable
from actograph.contract.models import ModelStructure
from actograph.dtypes import read_as
from storage.results.matrix import hook_names
from storage.sessions.reader import SessionReader, TensorSlice

Format = Literal["safetensors", "npy", "json"]

TOKEN_IDS, ROW_POSITIONS = "token_ids", "row_positions"
#: a JSON number takes about 20 bytes
MAX_JSON_VALUES = 1 << 18
#: stored bytes of a piece
PIECE_BYTES = 1 << 20

_ROWS = re.compile(r"([0-9]{0,12}):([0-9]{0,12})")


@dataclass(frozen=True, kw_only=True)
class _Slice:
    """The requested rows."""

    hook: str
    #: of the rows as they are read: those with scales are float32
    dtype: str
    #: shape of the slice; token ids and positions have one dimension
    shape: tuple[int, ...]
    #: number of the first row, or its token
    first: int
    #: token of each row, if rows were selected individually
    tokens: list[int] | None = None
    #: rows [start, stop) of the slice
    read: Callable[[int, int], TensorSlice]

    @property
    def width(self) -> int:
        return self.shape[1] if len(self.shape) > 1 else 1

    def pieces(self) -> Iterator[TensorSlice]:
        """Read the rows in pieces; a piece has one row at least."""
        at_once = max(1, PIECE_BYTES // max(1, self.width * tensor_files.itemsize(self.dtype)))
        for low in range(0, max(1, self.shape[0]), at_once):
            yield self.read(low, min(low + at_once, self.shape[0]))


def answer(
    reader: SessionReader,
    name: str,
    rows: str | None,
    form: Format,
    structure: Callable[[], ModelStructure | None] = lambda: None,
) -> Response:
    """Answer with rows `a:b` of the tensor of hook `name`; all rows by default.

    Args:
        structure: reads that of the session's model, whose module paths are names too.

    Raises:
        NotFound: the session has no such tensor.
        RangeNotSatisfiable: the tensor does not have these rows.
        InvalidRequest: `rows` cannot be read, or has more values than JSON may have.
        StoreDamaged: the stored files are missing or cut off, or contradict the manifest.
    """
    found = _find(reader, name, rows, structure)
    headers = {"X-Tensor-Dtype": found.dtype, "X-Tensor-First-Row": str(found.first)}
    if form == "json":
        body = _as_json(reader.session_id, found)
        return Response(body, headers=headers, media_type="application/json")
    size = found.shape[0] * found.width * tensor_files.itemsize(found.dtype)
    if form == "npy":
        head = tensor_files.npy_header(found.dtype, found.shape)
        pieces = (_values(piece).tobytes() for piece in found.pieces())
        # npy widens bfloat16
        size *= 2 if found.dtype == "BF16" else 1
    else:
        about = {"format": "pt", "session_id": reader.session_id, "first_row": str(found.first)}
        head = tensor_files.encode_header([(found.hook, found.dtype, found.shape)], about)
        pieces = (piece.data for piece in found.pieces())
    headers["Content-Length"] = str(len(head) + size)
    # damage in the first rows is an error of its own
    verified = chain([head, next(pieces)], pieces)
    return StreamingResponse(verified, 200, headers, "application/octet-stream")


def _find(
    reader: SessionReader, name: str, rows: str | None, structure: Callable[[], ModelStructure | None]
) -> _Slice:
    if name in (TOKEN_IDS, ROW_POSITIONS):
        numbers = array("q", reader.token_ids() if name == TOKEN_IDS else reader.row_positions())
        start, stop = _parse_rows(rows, len(numbers))

        def of_numbers(low: int, high: int) -> TensorSlice:
            return TensorSlice("I64", (high - low, 1), numbers[start + low : start + high].tobytes())

        return _Slice(hook=name, dtype="I64", shape=(stop - start,), first=start, read=of_numbers)
    # savepoints keep their meaning from the time of recording
    hook = reader.manifest.resolved_hooks.get(name) or hooks.canonical(name) or name
    stored = reader.manifest.tensors
    if hook not in stored:
        names = [name] if name in stored else hook_names(name, structure())
        hook = next((one for one in names if one in stored), hook)
    info = reader.tensor_info(hook)
    start, stop = _parse_rows(rows, info.shape[0])
    first, tokens = info.first_row + start, None
    if info.summary is not None:
        first = info.first_row
    elif info.position_offset is not None:
        tokens = list(reader.tokens_of_rows(hook)[start:stop])
        first = next(iter(tokens), info.first_row)
    return _Slice(
        hook=hook,
        dtype=read_as(info.dtype),
        shape=(stop - start, info.shape[1]),
        first=first,
        tokens=tokens,
        read=lambda low, high: reader.rows(hook, start + low, start + high),
    )


def _values(piece: TensorSlice) -> tensor_files.Array:
    return tensor_files.value_array(piece.dtype, piece.shape, piece.data)


def _as_json(session_id: str, found: _Slice) -> bytes:
    """Raises InvalidRequest if the slice has too many values."""
    if found.shape[0] * found.width > MAX_JSON_VALUES:
        at_once = MAX_JSON_VALUES // found.width
        advice = f"ask for {at_once} rows at a time, or for format=npy" if at_once else "ask for format=npy"
        raise InvalidRequest(
            f"{found.shape[0]} rows of {found.width} values are too many for JSON: {advice}", param="rows"
        )
    pieces = (_values(piece).reshape(-1, *found.shape[1:]) for piece in found.pieces())
    about = {
        "object": "activation.tensor",
        "session_id": session_id,
        "hook": found.hook,
        "dtype": found.dtype,
        "shape": list(found.shape),
        "first_row": found.first,
        "tokens": found.tokens,
        "data": [row for piece in pieces for row in tensor_files.json_rows(piece)],
    }
    return json.dumps(about, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def parse_bounds(text: str) -> tuple[int | None, int | None]:
    """Read `start:stop`, of which each may be left out. Raises InvalidRequest."""
    match = _ROWS.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"rows: {text!r} is not start:stop, such as 0:10 (whole numbers, not negative)", param="rows"
        )
    start, stop = (int(part) if part else None for part in match.groups())
    return start, stop


def _parse_rows(text: str | None, count: int) -> tuple[int, int]:
    low, high = parse_bounds(text or ":")
    start, stop = low or 0, count if high is None else high
    if not 0 <= start <= stop <= count:
        raise RangeNotSatisfiable(f"rows {start}:{stop}: the tensor has rows 0:{count}", param="rows")
    return start, stop
