"""Sizes of a job: rows, sessions, weights, and the memory of a run. No torch, no I/O.

The worker divides its memory with it, and the API estimates and refuses jobs with it.
Sizes are bytes, lengths are tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from actograph.contract.models import ModelStructure
from actograph.contract.row_selection import Features, FirstFeatures, NamedPositions, Selection, held_back
from actograph.contract.specs import CaptureSpec, Dtype

_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}
_LONG_BYTES = 8
#: mean, variance, min, max, rms and kurtosis of a channel
_STATISTICS = 6
_STATISTIC_BYTES = 8
#: manifest and file headers of a session, and the part of each hook
_SESSION_BYTES = 2560
_HOOK_BYTES = 464
#: of the text of a token in the manifest
_TEXT_BYTES = 10


def item_bytes(dtype: str) -> int:
    """Bytes of one number of this dtype; 4 for unknown dtypes."""
    return _ITEM_BYTES.get(dtype, 4)


def weights_bytes(structure: ModelStructure) -> int:
    """Bytes of the parameters, in the dtype of the loaded model."""
    return structure.num_parameters * item_bytes(structure.dtype)


def is_tail_only(structure: ModelStructure, hook: str) -> bool:
    """True if generation computes this tensor only from the last prompt token on."""
    info = structure.tensor_of(hook)
    return info is not None and info.tail_only


def _width(structure: ModelStructure, hook: str, features: Features | None) -> int:
    """Number of stored channels; an unknown location has the width of the hidden state."""
    info = structure.tensor_of(hook)
    width = structure.hidden_size if info is None else info.width
    if isinstance(features, FirstFeatures):
        return min(width, features.first)
    return width if features is None else len(features.indices)


def bytes_per_token(
    structure: ModelStructure, hooks: Sequence[str], dtype: Dtype = "model", features: Features | None = None
) -> int:
    """Bytes of one stored row over all `hooks`. Integers, such as expert indices, keep their dtype."""
    total = 0
    for hook in hooks:
        info = structure.tensor_of(hook)
        own = structure.dtype if info is None else info.dtype
        stored = own if dtype == "model" or own.startswith("int") else dtype
        total += _width(structure, hook, features) * item_bytes(stored)
    return total


def rows_of(
    structure: ModelStructure, hook: str, capture: CaptureSpec, prompt_tokens: int, generated_tokens: int
) -> int:
    """Most stored rows of a hook: P+G-1, or P if nothing is generated; see `Selection.rows`."""
    first = prompt_tokens - 1 if is_tail_only(structure, hook) and generated_tokens else 0
    stop = prompt_tokens + max(0, generated_tokens - 1)
    return len(Selection.of(capture.positions, prompt_tokens).rows(first, prompt_tokens, stop))


def keeps_tensors(capture: CaptureSpec) -> bool:
    """True if rows or reduced rows are stored, and not statistics alone."""
    return capture.stats is None or capture.stats.tensors


def stores_every_row(capture: CaptureSpec) -> bool:
    """True if storage grows with each token, and not only with each sample."""
    return capture.reduce == "none" and keeps_tensors(capture)


def _statistics_bytes(capture: CaptureSpec) -> list[int]:
    """Bytes per channel of each statistic; the number of tokens is one number for all channels."""
    if capture.stats is None:
        return []
    counted = [_LONG_BYTES] if capture.stats.threshold is not None else []
    return [0, *[_STATISTIC_BYTES] * _STATISTICS, *counted]


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
            total += _LONG_BYTES + _width(structure, hook, capture.features) * per_channel
        if capture.reduce != "none":
            rows = min(rows, 1)
        if keeps_tensors(capture):
            total += rows * bytes_per_token(structure, [hook], capture.dtype, capture.features)
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
    if capture.positions not in get_args(NamedPositions):
        # the tokens of rows that need not be consecutive
        numbers += max(rows_of(structure, hook, capture, prompt_tokens, generated_tokens) for hook in hooks)
    sizes = {"prompt_tokens": prompt_tokens, "generated_tokens": generated_tokens}
    texts = _TEXT_BYTES * (prompt_tokens + generated_tokens)
    headers = _SESSION_BYTES + texts + _LONG_BYTES * numbers + len(hooks) * per_hook * _HOOK_BYTES
    return headers + tensor_bytes(structure, hooks, capture, **sizes)


#: most requests at once by default; more would delay chats and lose more in a crash. On a CPU 64 take 0.9 of
#: the time of 32, since the last layer reads its weights for more of them at once.
CPU_SLOTS = 64
GPU_SLOTS = 256
#: share of the free memory that a run takes for keys, values and rows if no pass was measured: on a CPU, and
#: by the traced engine, whose passes are as long as prompts
RUN_SHARE = 0.6
#: bytes of a GPU that no run takes: for its libraries, and for gaps between tensors
GPU_SPARE = 1 << 30
#: share of a run's memory on a CPU, where rows take of the same memory, for keys and values
KEYS_SHARE = 0.5
#: share of a run's memory on a GPU, at most, that is kept for rows on their way to the host
STAGING_SHARE = 0.25
#: rows of a block, of which a request that captures holds one at least
BLOCK_ROWS = 64


def is_gpu(structure: ModelStructure) -> bool:
    return structure.device.startswith("cuda")


def most_slots(*, on_gpu: bool, most: int = 0) -> int:
    """Most requests at once: `most` (ACTOGRAPH_SLOTS), or the default if it is 0."""
    return most or (GPU_SLOTS if on_gpu else CPU_SLOTS)


def run_bytes(free: int, pass_bytes: int | None) -> int:
    """Bytes of a device that a run takes for keys, values and rows.

    Args:
        free: bytes that are free beside the weights.
        pass_bytes: measured peak of a pass's logits, activations and choice of tokens; None: not measured.
    """
    return int(RUN_SHARE * free) if pass_bytes is None else max(0, free - pass_bytes - GPU_SPARE)


@dataclass(frozen=True, kw_only=True)
class RunMemory:
    """Memory that a run takes when it begins.

    Attributes:
        total: bytes on the model's device; on a CPU rows take of them too.
        tokens: number of tokens whose keys and values are held.
        for_keys: bytes of these keys and values.
        for_staging: bytes on a GPU for rows on their way to the host; 0 on a CPU, which has no such way.
        for_rows: bytes of host memory for captured rows.
    """

    total: int
    tokens: int
    for_keys: int
    for_staging: int
    for_rows: int


def run_memory(
    total: int, *, token_bytes: int, slots: int, context: int, row_bytes: int, on_gpu: bool
) -> RunMemory:
    """Divide the memory of a run.

    Args:
        total: bytes of the device, see `run_bytes`.
        token_bytes: keys and values of one token.
        slots: requests at once.
        context: most tokens of a request.
        row_bytes: most host memory for captured rows; a GPU keeps no more for rows either, unless keys and
            values leave it.
    """
    staging = min(int(STAGING_SHARE * total), row_bytes)
    most_keys = total - staging if on_gpu else int(KEYS_SHARE * total)
    tokens = min(slots * context, most_keys // token_bytes)
    left = total - tokens * token_bytes
    return RunMemory(
        total=total,
        tokens=tokens,
        for_keys=tokens * token_bytes,
        for_staging=left if on_gpu else 0,
        for_rows=row_bytes if on_gpu else min(left, row_bytes),
    )


@dataclass(frozen=True, kw_only=True)
class SampleNeed:
    """Bytes that one sample takes of a run.

    Attributes:
        keys: keys and values of all its tokens, reserved from its start.
        staging: rows on the device before they reach their blocks; shared by samples of one job.
        block: rows that it holds at least, those that wait for its end included.
        rows: all its rows, if none left before its end.
    """

    keys: int
    staging: int = 0
    block: int = 0
    rows: int = 0


def sample_need(
    structure: ModelStructure,
    hooks: Sequence[str],
    capture: CaptureSpec,
    *,
    token_bytes: int,
    prompt_tokens: int,
    generated_tokens: int,
) -> SampleNeed:
    """Memory of one sample.

    Args:
        token_bytes: keys and values of one token.
        generated_tokens: 0 if the prompt is only read.
    """
    tokens = min(prompt_tokens + max(0, generated_tokens - 1), structure.context_length)
    staging = BLOCK_ROWS * bytes_per_token(structure, hooks, "model", capture.features)
    block = rows = 0
    if stores_every_row(capture):
        held = held_back(capture.positions)
        kept = BLOCK_ROWS + (0 if held is None else held[1])
        block = kept * bytes_per_token(structure, hooks, capture.dtype, capture.features)
        sizes = {"prompt_tokens": prompt_tokens, "generated_tokens": generated_tokens}
        rows = max(block, tensor_bytes(structure, hooks, capture, **sizes))
    return SampleNeed(keys=tokens * token_bytes, staging=staging, block=block, rows=rows)


def samples_at_once(room: RunMemory, need: SampleNeed, slots: int) -> int:
    """Samples of equal needs that run at once, at least 1."""
    fit = min(slots, room.for_keys // max(1, need.keys))
    if need.block:
        staged = 0 if room.for_staging else need.staging  # on a CPU it is in the same memory
        fit = min(fit, (room.for_rows - staged) // need.block)
    return max(1, fit)


def fits_device(room: RunMemory, need: SampleNeed, samples: int = 1) -> bool:
    """Whether so many samples of equal needs run at once, as far as the model's device decides."""
    staged = not room.for_staging or need.staging <= room.for_staging
    return staged and samples * need.keys <= room.for_keys
