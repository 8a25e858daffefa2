"""Sizes of a job in bytes: rows, sessions and weights. Sizes are per sample by default.

The memory of a batch is in `batch_memory`.
"""

from collections.abc import Sequence

from actograph.contract.resources import ModelStructure
from actograph.contract.row_selection import GENERATED_SEGMENTS, Features, FirstFeatures, Selection, is_slice
from actograph.contract.specs import CaptureSpec, Dtype

_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}
_LONG_BYTES = 8
#: mean, variance, min, max, rms and kurtosis of a channel
_STATISTICS = 6
STATISTIC_BYTES = 8
#: manifest and file headers of a session, and the part of each hook
_SESSION_BYTES = 2560
_HOOK_BYTES = 416


def item_bytes(dtype: str) -> int:
    """Bytes of one number of this dtype; 4 for unknown dtypes."""
    return _ITEM_BYTES.get(dtype, 4)


def hook_bytes(
    structure: ModelStructure, hook: str, dtype: Dtype = "model", features: Features | None = None
) -> int:
    """Bytes of one stored row of a hook.

    Integers, such as expert indices, keep their dtype. An unknown location has the width of the hidden state.
    """
    info = structure.tensor_of(hook)
    own = structure.dtype if info is None else info.dtype
    stored = own if dtype == "model" or own.startswith("int") else dtype
    return hook_width(structure, hook, features) * item_bytes(stored)


def hook_width(structure: ModelStructure, hook: str, features: Features | None = None) -> int:
    """Number of stored channels of a hook."""
    info = structure.tensor_of(hook)
    width = structure.hidden_size if info is None else info.width
    if isinstance(features, FirstFeatures):
        return min(width, features.first)
    return width if features is None else len(features.indices)


def bytes_per_token(
    structure: ModelStructure, hooks: Sequence[str], dtype: Dtype = "model", features: Features | None = None
) -> int:
    """Bytes of one stored row over all `hooks`."""
    return sum(hook_bytes(structure, hook, dtype, features) for hook in hooks)


def weights_bytes(structure: ModelStructure) -> int:
    """Bytes of the parameters, in the dtype of the loaded model."""
    return structure.num_parameters * item_bytes(structure.dtype)


def tensor_bytes(
    structure: ModelStructure,
    hooks: Sequence[str],
    capture: CaptureSpec,
    *,
    prompt_tokens: int,
    generated_tokens: int,
) -> int:
    """Bytes of the tensors of one session: rows, reduced rows and statistics of every hook.

    This is exact if the number of rows is known before the generation, see `Selection.rows`.
    """
    total, per_channel = 0, sum(_statistics_bytes(capture))
    for hook in hooks:
        rows = rows_of(structure, hook, capture, prompt_tokens, generated_tokens)
        if capture.stats is not None and rows:
            total += _LONG_BYTES + hook_width(structure, hook, capture.features) * per_channel
        if capture.reduce != "none":
            rows = min(rows, 1)
        if keeps_tensors(capture):
            total += rows * hook_bytes(structure, hook, capture.dtype, capture.features)
    return total


def stored_bytes(
    structure: ModelStructure,
    hooks: Sequence[str],
    capture: CaptureSpec,
    *,
    prompt_tokens: int,
    generated_tokens: int,
) -> int:
    """Bytes of one session on disk: tensors, token ids, manifest and headers; 0 without capture."""
    if not hooks:
        return 0
    per_hook = len(_statistics_bytes(capture)) + keeps_tensors(capture)
    numbers = prompt_tokens + generated_tokens
    chosen = capture.positions
    if not isinstance(chosen, str) or chosen in GENERATED_SEGMENTS or is_slice(chosen):
        # the tokens of rows that need not be consecutive
        numbers += max(rows_of(structure, hook, capture, prompt_tokens, generated_tokens) for hook in hooks)
    return (
        _SESSION_BYTES
        + _LONG_BYTES * numbers
        + len(hooks) * per_hook * _HOOK_BYTES
        + tensor_bytes(
            structure, hooks, capture, prompt_tokens=prompt_tokens, generated_tokens=generated_tokens
        )
    )


def is_tail_only(structure: ModelStructure, hook: str) -> bool:
    """True if generation computes this tensor only from the last prompt token on."""
    info = structure.tensor_of(hook)
    return info is not None and info.tail_only


def rows_of(
    structure: ModelStructure, hook: str, capture: CaptureSpec, prompt_tokens: int, generated_tokens: int
) -> int:
    """Most stored rows of a hook: P+G-1, or P if nothing is generated; see `Selection.rows`."""
    tail_only = is_tail_only(structure, hook)
    first = prompt_tokens - 1 if tail_only and generated_tokens else 0
    stop = prompt_tokens + max(0, generated_tokens - 1)
    selection = Selection.of(capture.positions, prompt_tokens)
    return len(selection.rows(first, prompt_tokens, stop))


def keeps_tensors(capture: CaptureSpec) -> bool:
    """True if rows or reduced rows are stored, and not statistics alone."""
    return capture.stats is None or capture.stats.tensors


def stores_every_row(capture: CaptureSpec) -> bool:
    """True if storage grows with each token, and not only with each sample."""
    return capture.reduce == "none" and keeps_tensors(capture)


def _statistics_bytes(capture: CaptureSpec) -> list[int]:
    """Bytes per channel of each statistic; the count has one number for all channels."""
    if capture.stats is None:
        return []
    counted = [_LONG_BYTES] if capture.stats.threshold is not None else []
    return [0, *[STATISTIC_BYTES] * _STATISTICS, *counted]
