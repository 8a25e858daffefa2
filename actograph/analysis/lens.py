"""Logits of stored residual streams, without a GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.analysis.checkpoint import BLOCK, Checkpoint
from actograph.contract.errors import InvalidRequest

Array = NDArray[Any]


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
    """Read residual rows as the model reads those of its last layer: by its own final norm and head.

    For rows of the last layer these are the model's logits. The vocabulary is read block by block.
    Source: nostalgebraist, Interpreting GPT: the logit lens (2020).

    Args:
        rows: `resid_post` of any layer, [n, width].
        targets: a token id for each row, [n]; -1 for none, which gives NaN.

    Raises:
        InvalidRequest: the width is not the model's, a target is not in its vocabulary, or `top` is not
            positive.
    """
    vocabulary = checkpoint.vocabulary
    if top < 1:
        raise InvalidRequest("top must be at least 1")
    tokens = np.empty((len(rows), 0), dtype=np.int64)
    logits = np.empty((len(rows), 0))
    total = np.full(len(rows), -np.inf)
    of_targets = np.full(len(rows), np.nan)
    if targets is not None and len(targets) and targets.max() >= vocabulary:
        raise InvalidRequest(f"token {targets.max()} is not in the vocabulary of {vocabulary}")
    for start in range(0, vocabulary, block):
        stop = min(start + block, vocabulary)
        found = checkpoint.logits(rows, start, stop).astype(np.float64)
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

    If the parts add up to the row of the last layer, the contributions and `constant` add up to the logit. A
    cap of the logits is left out, since it is not linear.
    Source: Elhage et al., A mathematical framework for transformer circuits (2021).

    Args:
        parts: terms of the residual stream, [components, n, width]: the row before the first layer, and what
            each sublayer adds. A sublayer's own output is no such term where the model changes it first.
        token: id of the token, or one for each row, [n].
        against: subtract the contribution to this token's logit.

    Returns:
        [components, n].

    Raises:
        InvalidRequest: the width or a token is not the model's.
    """
    if parts.ndim != 3:
        raise InvalidRequest(f"parts must be [components, n, width], not {list(parts.shape)}")
    direction = _less(checkpoint.unembedded, token, against)
    return np.asarray((checkpoint.linear_parts(parts) * direction).sum(axis=-1))


def constant(checkpoint: Checkpoint, token: int | Array, *, against: int | None = None) -> Array:
    """Part of a token's logit that depends on no row, by the biases of norm and head, [1 or n].

    Args:
        token, against: as in `attribution`.

    Raises:
        InvalidRequest: a token is not the model's.
    """
    return _less(checkpoint.constants, token, against)


def _less(of_tokens: Callable[[Array], Array], token: int | Array, against: int | None) -> Array:
    """A function of the tokens, each computed once, less that of another token."""
    ids, places = np.unique(np.atleast_1d(token), return_inverse=True)
    found = of_tokens(ids)[places]
    return found if against is None else found - of_tokens(np.array([against]))
