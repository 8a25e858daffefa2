"""Attention of a stored session, computed from its queries and keys block by block."""

import json
from collections.abc import Iterator
from itertools import chain
from typing import Literal

import numpy as np
from starlette.responses import Response, StreamingResponse

from actograph import tensor_files
from actograph.attention_patterns import Floats, Patterns, patterns_of
from actograph.contract.errors import InvalidRequest
from api.reading.tensor_slices import MAX_JSON_VALUES, parse_bounds
from storage.sessions.reader import SessionReader

Format = Literal["npy", "json"]

#: weights of one answer, at most
MAX_VALUES = 1 << 30


def answer(reader: SessionReader, layer: int, head: int | None, rows: str | None, form: Format) -> Response:
    """Answer with the attention of tokens `a:b`, by default of all.

    Raises:
        NotFound: the session has no queries or keys of this layer, or not of all tokens.
        InvalidRequest: no such head or rows, or too many of them; or attention cannot be computed.
        StoreDamaged: the stored files are missing or cut off, or contradict the manifest.
    """
    manifest = reader.manifest
    start, stop = (None, None) if rows is None else parse_bounds(rows)

    def read(hook: str, low: int, high: int) -> Floats:
        found = reader.rows(hook, low, high)
        values = tensor_files.value_array(found.dtype, found.shape, found.data)
        return np.asarray(values, np.float32)

    patterns = patterns_of(
        layer,
        attention=manifest.attention,
        features=manifest.capture.get("features"),
        turns=len(manifest.turns),
        tensors=manifest.tensors,
        tokens_of=reader.tokens_of_rows,
        read=read,
        head=head,
        start=start,
        stop=stop,
    )
    count, heads, tokens = patterns.shape
    shape = (count, tokens) if head is not None else (count, heads, tokens)
    values = count * heads * tokens
    most = MAX_JSON_VALUES if form == "json" else MAX_VALUES
    if values > most:
        raise InvalidRequest(
            f"{count} rows of {heads} heads over {tokens} tokens are {values:,} weights, and one answer has "
            f"{most:,} at most; ask for one head or for fewer rows",
            param="rows",
        )
    if form == "json":
        return _as_json(reader.session_id, layer, patterns, shape)
    head_bytes = tensor_files.npy_header("F32", shape)
    pieces = (block.tobytes() for block in patterns.blocks())
    # damage in the first rows is an error of its own
    verified: Iterator[bytes] = chain([head_bytes, next(pieces, b"")], pieces)
    headers = {"X-Tensor-First-Row": str(patterns.start), "Content-Length": str(len(head_bytes) + 4 * values)}
    return StreamingResponse(verified, 200, headers, "application/octet-stream")


def _as_json(session_id: str, layer: int, patterns: Patterns, shape: tuple[int, ...]) -> Response:
    blocks = [*patterns.blocks()]
    data = np.concatenate(blocks).reshape(shape).tolist() if blocks else []
    about = {
        "object": "activation.attention",
        "session_id": session_id,
        "layer": layer,
        "heads": list(patterns.heads),
        "shape": list(shape),
        "first_row": patterns.start,
        "data": data,
    }
    body = json.dumps(about, allow_nan=False, separators=(",", ":")).encode()
    return Response(body, media_type="application/json")
