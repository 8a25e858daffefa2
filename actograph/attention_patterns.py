"""Attention patterns from stored queries and keys, as the model computes them.

A load verifies that this arithmetic gives the weights of the model's own eager attention. It is in float32,
and so are the patterns, whatever the dtype of the stored rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.models import LayerHeads
from actograph.contract.resources import TensorInfo

Floats = NDArray[np.float32]

#: weights of a block, at most, unless one row has more
_BLOCK = 1 << 20


def weights(
    queries: Floats, keys: Floats, attention: LayerHeads, head: int, *, first: int, first_key: int = 0
) -> Floats:
    """Attention of one head.

    Args:
        queries: [rows, width], of consecutive tokens from number `first` on.
        keys: [keys, width] of its key head, of consecutive tokens from number `first_key` on.

    Returns:
        [rows, keys]: the share of each key; 0 for tokens that a row does not see.
    """
    scores: Floats = (queries @ keys.T) * np.float32(attention.scale)
    if attention.softcap is not None:
        cap = np.float32(attention.softcap)
        scores = np.tanh(scores / cap) * cap
    token = np.arange(first, first + len(queries))[:, None]
    key = np.arange(first_key, first_key + len(keys))
    hidden = key > token
    if attention.window is not None:
        hidden |= key <= token - attention.window
    scores[hidden] = -np.inf
    largest = scores.max(axis=-1, keepdims=True)
    sink = None if attention.sinks is None else np.float32(attention.sinks[head])
    if sink is not None:
        largest = np.maximum(largest, sink)
    np.exp(scores - largest, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    if sink is not None:
        total += np.exp(sink - largest)
    scores /= total
    return scores


@dataclass(frozen=True, kw_only=True)
class Patterns:
    """Attention of some rows of one layer, computed block by block.

    Attributes:
        heads: numbers of the heads, in the order of the result.
        start: number of the first row's token; `stop`: after the last one.
        first_key: number of the first token that any of the rows sees.
    """

    attention: LayerHeads
    heads: Sequence[int]
    start: int
    stop: int
    first_key: int
    _columns: Mapping[str, Mapping[int, int]]  # q, k -> head -> its first column in the stored rows
    _queries: Callable[[int, int], Floats]  # of tokens [start, stop)
    _keys: Callable[[int, int], Floats]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, heads and tokens: those before `stop`, which are all that the rows can see."""
        return self.stop - self.start, len(self.heads), self.stop

    def blocks(self) -> Iterator[Floats]:
        """Rows of the result, [rows, heads, tokens] each."""
        width, group = self.attention.width, self.attention.heads // self.attention.key_heads
        every = self._keys(self.first_key, self.stop) if self.stop > self.start else np.empty((0, 0), "f4")
        begins = {head: self._columns["k"][head // group] for head in self.heads}
        keys = {begin: np.ascontiguousarray(every[:, begin : begin + width]) for begin in begins.values()}
        del every
        size = max(1, _BLOCK // max(1, len(self.heads) * self.stop))
        for first in range(self.start, self.stop, size):
            last = min(first + size, self.stop)
            queries = self._queries(first, last)
            made = np.zeros((last - first, len(self.heads), self.stop), np.float32)
            for place, head in enumerate(self.heads):
                begin = self._columns["q"][head]
                made[:, place, self.first_key : last] = weights(
                    np.ascontiguousarray(queries[:, begin : begin + width]),
                    keys[begins[head]][: last - self.first_key],
                    self.attention,
                    head,
                    first=first,
                    first_key=self.first_key,
                )
            yield made


def patterns_of(
    layer: int,
    *,
    attention: Mapping[int, LayerHeads],
    features: Any,
    turns: int,
    tensors: Mapping[str, TensorInfo],
    tokens_of: Callable[[str], Sequence[int] | NDArray[np.int64]],
    read: Callable[[str, int, int], Floats],
    head: int | None = None,
    start: int | None = None,
    stop: int | None = None,
) -> Patterns:
    """Attention of a layer of a stored session.

    Args:
        attention: of the manifest.
        features: of its capture spec.
        turns: number of turns of the model.
        tensors: by hook.
        tokens_of: the token of each row of a hook, ascending.
        read: rows [start, stop) of a hook, float32 [rows, columns].
        head: None for all.
        start: the first token whose attention is wanted, and after the last; None: all with a stored query.

    Raises:
        NotFound: the session has no queries or keys of this layer, or not of a token that is needed.
        InvalidRequest: no such head or rows, or the patterns cannot be computed from what is stored.
    """
    known = {name: tensors.get(f"{name}.{layer}") for name in ("q", "k")}
    for name, info in known.items():
        if info is None:
            raise NotFound(
                f"the session has no {name}.{layer}. Attention of layer {layer} needs q.{layer} and "
                f"k.{layer} of every token: capture both, with positions all"
            )
        if info.summary is not None:
            raise InvalidRequest(
                f"{name}.{layer} is stored as the {info.summary} of its rows. Attention needs the rows: "
                "capture without reduce"
            )
    of = attention.get(layer)
    if of is None or of.unproved is not None:
        reason = "its manifest does not say how" if of is None else of.unproved
        raise InvalidRequest(f"the attention of layer {layer} cannot be computed from q and k: {reason}")
    if turns > 1:
        raise InvalidRequest(
            f"the session has {turns} turns. A turn does not see all tokens before it, so its attention is "
            "not computed from q and k; use sessions of one turn"
        )
    columns = _columns(of, features)
    heads = _heads(layer, of, columns, head)
    tokens = {name: np.asarray(tokens_of(f"{name}.{layer}")) for name in known}
    have = tokens["q"]
    start = (int(have[0]) if len(have) else 0) if start is None else start
    stop = (int(have[-1]) + 1 if len(have) else start) if stop is None else stop
    if not 0 <= start <= stop:
        raise InvalidRequest(f"rows {start}:{stop}: the second number must not be smaller", param="rows")
    first_key = max(0, start - of.window + 1) if of.window is not None else 0
    if start == stop:
        first_key = stop
    places = {
        "q": _place(f"q.{layer}", tokens["q"], start, stop),
        "k": _place(f"k.{layer}", tokens["k"], first_key, stop),
    }

    def reader(name: str, low: int) -> Callable[[int, int], Floats]:
        return lambda first, last: read(
            f"{name}.{layer}", places[name] + first - low, places[name] + last - low
        )

    return Patterns(
        attention=of,
        heads=heads,
        start=start,
        stop=stop,
        first_key=first_key,
        _columns=columns,
        _queries=reader("q", start),
        _keys=reader("k", first_key),
    )


def _heads(
    layer: int, of: LayerHeads, columns: Mapping[str, Mapping[int, int]], head: int | None
) -> Sequence[int]:
    """The wanted heads, by default all that have a stored query. Raises as `patterns_of`."""
    if head is not None and not 0 <= head < of.heads:
        raise InvalidRequest(f"head {head}: layer {layer} has heads 0 to {of.heads - 1}", param="head")
    heads = list(columns["q"]) if head is None else [head]
    group = of.heads // of.key_heads
    for one in heads:
        for name, number in (("q", one), ("k", one // group)):
            if number not in columns[name]:
                raise NotFound(
                    f"the session does not have head {number} of {name}.{layer}, which head {one} needs; it "
                    f"has heads {', '.join(map(str, columns[name]))}"
                )
    return heads


def _columns(of: LayerHeads, features: Any) -> dict[str, dict[int, int]]:
    """For q and k: each stored head and its first column."""
    stored = {"q": list(range(of.heads)), "k": list(range(of.key_heads))}
    if features is not None:
        if "heads" not in features:
            raise InvalidRequest(
                "the session has single features of q and k. Attention needs whole heads: capture without "
                'features, or with features {"heads": [...]}'
            )
        stored = {name: list(features["heads"]) for name in stored}
    return {name: {head: i * of.width for i, head in enumerate(heads)} for name, heads in stored.items()}


def _place(hook: str, tokens: NDArray[np.int64], start: int, stop: int) -> int:
    """The row of token `start`; all tokens up to `stop` follow. Raises NotFound."""
    low, high = np.searchsorted(tokens, [start, stop])
    if high - low != stop - start:
        missing = min({*range(start, stop)}.difference(tokens[low:high].tolist()))
        raise NotFound(
            f"the session has no row of {hook} for token {missing}. Attention of tokens {start} to "
            f"{stop - 1} needs it: q of these tokens, and k of all tokens that they see. Capture with "
            "positions all, or ask for fewer rows"
        )
    return int(low)
