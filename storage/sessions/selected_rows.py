"""Rows of a stored tensor that positions select, and their reduction over tokens."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from actograph import tensor_files
from actograph.contract.row_selection import Positions, consecutive, stored_rows
from actograph.dtypes import read_as
from actograph.tensor_files import Array
from storage.sessions.reader import SessionReader

#: bytes of rows in one block
READ_BYTES = 16 << 20

Floats = NDArray[np.float64]


def select(reader: SessionReader, hook: str, positions: Positions) -> tuple[Sequence[int], list[int]]:
    """Return the token of every row of a hook's tensor, and the selected rows.

    Raises:
        NotFound: the session has no such hook.
        StoreDamaged: the files are damaged.
    """
    tokens, manifest = reader.tokens_of_rows(hook), reader.manifest
    chosen = stored_rows(
        positions,
        tokens,
        prompt_tokens=manifest.prompt_tokens,
        # the model never reads the last generated token
        ran=manifest.num_tokens - (1 if manifest.generated_tokens else 0),
        segments=manifest.segments,
    )
    return tokens, chosen


def read(reader: SessionReader, hook: str, start: int, stop: int) -> Array:
    """Read rows [start, stop) as numbers. Raises StoreDamaged."""
    piece = reader.rows(hook, start, stop)
    return tensor_files.value_array(piece.dtype, piece.shape, piece.data)


def of_token(reader: SessionReader, hook: str, token: int) -> Array | None:
    """The row [width] of one token as numbers; None if the tensor has no row of it.

    Raises:
        NotFound: the session has no such hook.
        StoreDamaged: the files are damaged.
    """
    tokens = reader.tokens_of_rows(hook)
    place = bisect_left(tokens, token)
    if place == len(tokens) or tokens[place] != token:
        return None
    row: Array = read(reader, hook, place, place + 1)[0]
    return row


def reduced(reader: SessionReader, hook: str, rows: Sequence[int], reduce: Literal["mean", "max"]) -> Floats:
    """Reduce rows, of which there is at least one, to `[width]`. They are read in blocks."""
    info = reader.tensor_info(hook)
    at_once = max(1, READ_BYTES // max(1, info.shape[1] * tensor_files.itemsize(read_as(info.dtype))))
    return reduced_blocks(partial(read, reader, hook), info.shape[1], rows, reduce, at_once=at_once)


def reduced_blocks(
    read_rows: Callable[[int, int], Array],
    width: int,
    rows: Sequence[int],
    reduce: Literal["mean", "max"],
    *,
    at_once: int,
) -> Floats:
    """Reduce rows, of which there is at least one, to `[width]`; `at_once` of them are in memory."""
    total, highest = np.zeros(width), np.full(width, -np.inf)
    for low, high in consecutive(rows):
        for start in range(low, high, at_once):
            values = read_rows(start, min(start + at_once, high)).astype(np.float64)
            total += values.sum(axis=0)
            highest = np.maximum(highest, values.max(axis=0))
    found: Floats = total / len(rows) if reduce == "mean" else highest
    return found
