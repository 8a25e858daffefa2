"""Logits of stored residual streams, without a GPU."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.analysis.checkpoint import Checkpoint
from actograph.contract.errors import InvalidRequest

Array = NDArray[Any]
#: rows of the unembedding in memory at a time
BLOCK = 16_384


@dataclass(frozen=True)
class TopTokens:
    """The most probable next tokens of each row, best first."""

    #: token ids, [n, k]
    tokens: NDArray[np.int64]
    #: logits, [n, k]
    logits: NDArray[np.float64]
    #: natural logarithms of the probabilities, [n, k]
    log_probabilities: NDArray[np.float64]
    #: natural logarithm of the probability of each row's target, [n]; None without targets
    target_log_probabilities: NDArray[np.float64] | None = None


def logit_lens(
    rows: Array,
    checkpoint: Checkpoint,
    *,
    top: int = 10,
    targets: Array | None = None,
    block: int = BLOCK,
) -> TopTokens:
    """Read residual rows as the model reads its last one: final norm, then unembedding.

    Source: nostalgebraist, Interpreting GPT: the logit lens (2020). The vocabulary is read block by block.

    Args:
        rows: `resid_post` of any layer, [n, width].
        targets: a token id for each row, [n]; -1 for none, which gives NaN.

    Raises:
        InvalidRequest: the width is not the model's, a target is not in its vocabulary, or `top` is not
            positive.
    """
    unembedding = checkpoint.unembedding
    vocabulary, width = unembedding.entry.shape
    _check_width(rows, width)
    if top < 1:
        raise InvalidRequest("top must be at least 1")
    normalised = checkpoint.norm.apply(rows).astype(np.float32)
    tokens = np.empty((len(rows), 0), dtype=np.int64)
    logits = np.empty((len(rows), 0))
    total = np.full(len(rows), -np.inf)
    of_targets = np.full(len(rows), np.nan)
    if targets is not None and len(targets) and targets.max() >= vocabulary:
        raise InvalidRequest(f"token {targets.max()} is not in the vocabulary of {vocabulary}")
    for start in range(0, vocabulary, block):
        stop = min(start + block, vocabulary)
        found = _capped((normalised @ unembedding.rows(start, stop).T).astype(np.float64), checkpoint)
        peak = found.max(axis=1)
        total = np.logaddexp(total, peak + np.log(np.exp(found - peak[:, None]).sum(axis=1)))
        numbers = np.broadcast_to(np.arange(start, stop), found.shape)
        tokens, logits = np.hstack([tokens, numbers]), np.hstack([logits, found])
        if targets is not None:
            inside = np.flatnonzero((targets >= start) & (targets < stop))
            of_targets[inside] = found[inside, targets[inside] - start]
        if logits.shape[1] > top:
            best = np.argpartition(-logits, top - 1, axis=1)[:, :top]
            tokens = np.take_along_axis(tokens, best, axis=1)
            logits = np.take_along_axis(logits, best, axis=1)
    order = np.lexsort((tokens, -logits), axis=1)
    tokens = np.take_along_axis(tokens, order, axis=1)
    logits = np.take_along_axis(logits, order, axis=1)
    return TopTokens(tokens, logits, logits - total[:, None], None if targets is None else of_targets - total)


def attribution(
    parts: Array, checkpoint: Checkpoint, token: int | Array, *, against: int | None = None
) -> Array:
    """Contribution of each component to a token's logit, at the final norm's scale of their sum.

    If the parts add up to the last residual row, the contributions add up to the logit, less the norm's
    bias. A cap of the logits is left out, since it is not linear.
    Source: Elhage et al., A mathematical framework for transformer circuits (2021).

    Args:
        parts: embedding and outputs of attention and MLP of each layer, [components, n, width].
        token: id of the token, or one for each row, [n].
        against: subtract the contribution to this token's logit.

    Returns:
        [components, n].

    Raises:
        InvalidRequest: the width or a token is not the model's.
    """
    _, width = checkpoint.unembedding.entry.shape
    if parts.ndim != 3:
        raise InvalidRequest(f"parts must be [components, n, width], not {parts.shape}")
    _check_width(parts[0], width)
    direction = _unembedded(checkpoint, token)
    if against is not None:
        direction = direction - _unembedded(checkpoint, against)
    scale = checkpoint.norm.scale(parts.astype(np.float64).sum(axis=0))
    return np.asarray((checkpoint.norm.linear(parts, scale) * direction).sum(axis=-1))


def _unembedded(checkpoint: Checkpoint, token: int | Array) -> NDArray[np.float64]:
    """Rows of the unembedding, [1 or n, width], times the logits' factor."""
    vocabulary = checkpoint.unembedding.entry.shape[0]
    ids, places = np.unique(np.atleast_1d(token), return_inverse=True)
    for one in ids:
        if not 0 <= one < vocabulary:
            raise InvalidRequest(f"token {one} is not in the vocabulary of {vocabulary}")
    rows = [checkpoint.unembedding.rows(int(one), int(one) + 1)[0].astype(np.float64) for one in ids]
    return np.asarray(np.array(rows)[places] * checkpoint.logit_scale)


def _check_width(rows: Array, width: int) -> None:
    if rows.ndim != 2 or rows.shape[1] != width:
        raise InvalidRequest(f"rows must be [n, {width}] for this model, not {list(rows.shape)}")


def _capped(logits: NDArray[np.float64], checkpoint: Checkpoint) -> NDArray[np.float64]:
    logits *= checkpoint.logit_scale
    cap = checkpoint.logit_cap
    return logits if cap is None else np.asarray(np.tanh(logits / cap) * cap)
