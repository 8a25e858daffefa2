"""Rows that wait for the end of their sample, which alone decides what of them is stored."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.engine.messages import Rows


@dataclass(frozen=True, slots=True)
class _LastRows:
    tokens: tuple[int, ...]
    data: NDArray[np.uint8]  # [rows, bytes of a row]
    dtype: str


class HeldRows:
    """The last rows of each hook, over all turns of a sample.

    Args:
        most: number of rows of a hook that are enough.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[str, _LastRows] = {}

    def add(self, hook: str, chunk: Rows) -> None:
        """Take further rows of a hook, each with its token."""
        assert chunk.tokens is not None
        raw, tokens = list(chunk.pieces), chunk.tokens
        if hook in self._held:
            raw, tokens = [self._held[hook].data, *raw], self._held[hook].tokens + tokens
        data = np.concatenate(raw)[-self._most :]
        self._held[hook] = _LastRows(tokens[-self._most :], data.copy(), chunk.dtype)

    def chosen(self, tokens: Collection[int]) -> Mapping[str, Rows]:
        """The held rows of these tokens by hook; a hook without any has an empty chunk."""
        chunks = dict[str, Rows]()
        for hook, held in self._held.items():
            places = [place for place, token in enumerate(held.tokens) if token in tokens]
            named = tuple(held.tokens[place] for place in places)
            chunks[hook] = Rows(next(iter(named), 0), (held.data[places],), held.dtype, named)
        return chunks
