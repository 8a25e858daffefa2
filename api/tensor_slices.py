"""Rows of one stored tensor, in the format that a client asked for."""

import re
from typing import Any, Literal

from starlette.responses import JSONResponse, Response

from actograph import tensor_files
from actograph.contract import hooks
from actograph.contract.errors import InvalidRequest, RangeNotSatisfiable
from storage.session_reader import SessionReader, TensorSlice

Format = Literal["safetensors", "npy", "json"]

TOKEN_IDS = "token_ids"
ROW_POSITIONS = "row_positions"
#: a JSON number takes about 20 bytes
MAX_JSON_VALUES = 1 << 18
#: an answer is held in memory
MAX_BYTES = 256 << 20

_ROWS = re.compile(r"([0-9]{0,12}):([0-9]{0,12})")


def answer(reader: SessionReader, name: str, rows: str | None, form: Format) -> Response:
    """Rows `a:b` of the tensor of hook `name`, counted within the tensor; all where none are named.

    Raises:
        NotFound: the session has no such tensor.
        RangeNotSatisfiable: the tensor does not have these rows.
        InvalidRequest: `rows` cannot be read, or more was asked for than one answer may hold.
        StoreDamaged: the stored files do not hold what they should.
    """
    hook = hooks.canonical(name) or name
    if hook not in reader.manifest.tensors and name in reader.manifest.tensors:
        hook = name
    numbers = _numbers(reader, hook)
    tokens: list[int] | None = None
    if numbers is not None:
        count, row_values, itemsize, first_row = len(numbers), 1, 8, 0
    else:
        info = reader.tensor_info(hook)
        count, row_values, first_row = info.shape[0], info.shape[1], info.first_row
        itemsize = tensor_files.itemsize(info.dtype)
    start, stop = _parse_rows(rows, count)
    _check_size(stop - start, row_values, itemsize, form)
    first = first_row + start
    if numbers is not None:
        raw = b"".join(i.to_bytes(8, "little", signed=True) for i in numbers[start:stop])
        piece = TensorSlice("I64", (stop - start, 1), raw)
        shape: tuple[int, ...] = (stop - start,)
    else:
        piece = reader.rows(hook, start, stop)
        shape = piece.shape
        if info.summary is not None:
            first = first_row
        elif info.position_offset is not None:
            tokens = list(reader.tokens_of_rows(hook)[start:stop])
            first = next(iter(tokens), first_row)
    about = {"X-Tensor-Dtype": piece.dtype, "X-Tensor-First-Row": str(first)}
    if form == "safetensors":
        metadata = {"format": "pt", "session_id": reader.session_id, "first_row": str(first)}
        data = tensor_files.encode_tensors({hook: (piece.dtype, shape, piece.data)}, metadata)
        return Response(data, headers=about, media_type="application/octet-stream")
    if piece.dtype.startswith("F8"):
        raise InvalidRequest(f"numpy has no {piece.dtype}; ask for format=safetensors", param="format")
    array = tensor_files.value_array(piece.dtype, shape, piece.data)
    if form == "npy":
        return Response(tensor_files.encode_npy(array), headers=about, media_type="application/octet-stream")
    body: dict[str, Any] = {
        "object": "activation.tensor",
        "session_id": reader.session_id,
        "hook": hook,
        "dtype": piece.dtype,
        "shape": list(shape),
        "first_row": first,
        "tokens": tokens,
        "data": tensor_files.json_rows(array),
    }
    return JSONResponse(body, headers=about)


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


def _check_size(rows: int, row_values: int, itemsize: int, form: Format) -> None:
    if form == "json" and rows * row_values > MAX_JSON_VALUES:
        at_once = MAX_JSON_VALUES // row_values
        advice = f"ask for {at_once} rows at a time, or for format=npy" if at_once else "ask for format=npy"
        raise InvalidRequest(
            f"{rows} rows of {row_values} values are too many for JSON: {advice}", param="rows"
        )
    # npy widens bfloat16
    size = rows * row_values * (max(itemsize, 4) if form == "npy" else itemsize)
    if size > MAX_BYTES:
        raise InvalidRequest(
            f"{rows} rows take {size} bytes, one answer may have {MAX_BYTES}: ask for "
            f"{MAX_BYTES * rows // size} rows at a time, or download the file",
            param="rows",
        )


def _numbers(reader: SessionReader, name: str) -> list[int] | None:
    """The tensors that are numbers about the rows and not rows; None for every other name."""
    if name == TOKEN_IDS:
        return reader.token_ids()
    return reader.row_positions() if name == ROW_POSITIONS else None
