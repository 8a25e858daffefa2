"""One number for each token of a session, computed from the rows of a hook."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from storage.sessions import selected_rows
from storage.sessions.reader import SessionReader
from storage.sessions.selected_rows import Floats

#: rows [n, width] -> n numbers; NaN if they do not suit the width
Reduce = Callable[[Floats], Floats]

#: numbers of rows in memory at a time
_AT_ONCE = 1 << 18


def norm(rows: Floats) -> Floats:
    """The Euclidean norm of each row."""
    lengths: Floats = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return lengths


def channel(number: int) -> Reduce:
    """One channel of each row."""
    return lambda rows: rows[:, number] if number < rows.shape[1] else np.full(len(rows), np.nan)


def projection(direction: Floats) -> Reduce:
    """The length of each row along a direction; NaN along zeros."""
    length = float(np.linalg.norm(direction))
    unit = direction / length if length else np.full(len(direction), np.nan)
    return lambda rows: rows @ unit if rows.shape[1] == len(unit) else np.full(len(rows), np.nan)


def values(reader: SessionReader, hook: str, reduce: Reduce, tokens: range) -> NDArray[np.float32]:
    """A number for each of consecutive tokens, NaN for tokens without a row. Rows are read in blocks.

    Raises:
        NotFound: the session has no such hook.
        StoreDamaged: the stored files are missing or damaged.
    """
    found = np.full(len(tokens), np.nan, dtype="<f4")
    info = reader.tensor_info(hook)
    if info.summary is not None:
        return found
    of_rows = np.asarray(reader.tokens_of_rows(hook), dtype=np.int64)
    low, high = np.searchsorted(of_rows, (tokens.start, tokens.stop)).tolist()
    step = max(1, _AT_ONCE // info.shape[1])
    for start in range(low, high, step):
        stop = min(start + step, high)
        rows = selected_rows.read(reader, hook, start, stop).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            found[of_rows[start:stop] - tokens.start] = reduce(rows)
    return found
