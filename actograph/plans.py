"""Sizes of a job: rows, sessions, weights, and the memory of one batch. No torch, no I/O.

The worker plans its batches with it, and the API estimates and refuses jobs with it.
Sizes are bytes, lengths are tokens.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from actograph.contract.models import ModelStructure
from actograph.contract.row_selection import GENERATED_SEGMENTS, Features, FirstFeatures, Selection
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
    if not isinstance(capture.positions, str) or capture.positions in GENERATED_SEGMENTS:
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


#: maximum of samples in a batch. On a CPU larger batches are not faster. On a GPU larger batches would delay
#: chats and lose more in a crash.
CPU_BATCH_CAP = 32
GPU_BATCH_CAP = 256
#: share of the free memory for a plan; the rest is for fragmentation and library workspaces
USABLE = 0.6
#: hidden tensors alive at once during a prefill, in tensors of the hidden size
_PREFILL_TENSORS = 16
#: the same for each expert of a token: its input, its output, and the weighted output
_EXPERT_TENSORS = 3
#: float32 copies of one step's logits that sampling makes
_LOGITS_COPIES = 3
#: logits in memory at once to score prompts, see `scored_token_bytes`
SCORED_PIECE_BYTES = 128 << 20
#: tensors of rows between the model and the host's buffer: one at the model, one at the writer, the queue
QUEUE_BLOCKS = 4
_ROWS_IN_FLIGHT = QUEUE_BLOCKS + 2
#: limits of a block of decode steps that are copied together; a block has at least one step
DEVICE_BUFFER_BYTES = 64 << 20
MAX_BLOCK_STEPS = 64
#: float64 numbers per channel to merge statistics: each of the running summary, the newest rows and the
#: merged summary (one more with a threshold), and temporaries
_STATISTICS_HELD, _STATISTICS_IN_PASSING = 6, 8
#: float32 numbers per channel to merge reduced rows: the running row, the newest row and the merged row
_REDUCED_HELD = 3


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Memory of a worker for batches, and the largest number of samples in a batch."""

    #: free bytes on the model's device
    device_bytes: int
    #: bytes of host memory for a batch's captured rows
    host_buffer_bytes: int
    cap: int
    on_gpu: bool

    @property
    def usable_bytes(self) -> int:
        """Bytes that a plan may use."""
        return int(self.device_bytes * USABLE)


def is_gpu(structure: ModelStructure) -> bool:
    return structure.device.startswith("cuda")


def batch_cap(*, on_gpu: bool, most: int = 0) -> int:
    """Most samples at once: `most` (ACTOGRAPH_BATCH_SIZE), or the default if it is 0."""
    return most or (GPU_BATCH_CAP if on_gpu else CPU_BATCH_CAP)


@dataclass(frozen=True, kw_only=True)
class CaptureNeed:
    """Memory that capturing adds to one sample."""

    #: bytes of the stored rows of the prompt
    prompt_rows: int = 0
    #: the largest share of one hook, whose rows are copied and written together
    largest_strip: int = 0
    #: one decode step over all hooks, as the model computes it; 0 if no decoded row is read
    step: int = 0
    #: sums for `reduce` and `stats`
    summaries: int = 0

    def in_flight(self, samples: int) -> int:
        """Most bytes on the way to the host's buffer: strips of the prompts, then blocks of steps."""
        strips = min(self.prompt_rows, _ROWS_IN_FLIGHT * self.largest_strip)
        step = samples * self.step
        block = max(step, min(DEVICE_BUFFER_BYTES, MAX_BLOCK_STEPS * step))
        return max(samples * strips, _ROWS_IN_FLIGHT * block)


@dataclass(frozen=True, kw_only=True)
class BatchMemory:
    """Bytes of one batch by part, on the model's device."""

    #: keys and values of prompt and continuation
    cache: int = 0
    #: one step's logits
    logits: int = 0
    #: tensors of one layer during the prefill
    activations: int = 0
    #: mask of padded prompts, and attention scores
    attention: int = 0
    #: sums of captured rows
    summaries: int = 0
    #: captured rows that are being copied to host memory
    in_flight: int = 0
    #: logits of scored prompt tokens
    scored: int = 0

    @property
    def certain(self) -> int:
        """Least bytes of the batch on the model's device, without rows on their way to the host."""
        return self.cache + self.logits + self.activations + self.attention + self.summaries + self.scored

    @property
    def device(self) -> int:
        return self.certain + self.in_flight


def attention_bytes(structure: ModelStructure, *, prompt_tokens: int, samples: int) -> int:
    """Memory for every pair of tokens of the prompts: their mask, and the scores of eager attention.

    One prompt alone is not padded and has no mask.
    """
    mask = structure.mask_bytes_per_pair
    if mask is None:  # not measured: a boolean mask, converted twice
        mask = 1 + 2 * item_bytes(structure.dtype)
    pair = structure.scores_bytes_per_pair + (mask if samples > 1 else 0)
    return samples * prompt_tokens**2 * pair


def activation_bytes(structure: ModelStructure, *, prompt_tokens: int) -> int:
    """Size of the temporary tensors while one prompt is read; each token goes to several experts."""
    tensors = _PREFILL_TENSORS + _EXPERT_TENSORS * (structure.experts_per_token or 0)
    return prompt_tokens * structure.hidden_size * item_bytes(structure.dtype) * tensors


def scored_token_bytes(vocab_size: int) -> int:
    """Memory to score one token: its logits, and float32 copies of them."""
    return (_LOGITS_COPIES + 1) * 4 * vocab_size


def scored_bytes(structure: ModelStructure, *, prompt_tokens: int) -> int:
    """Most memory to score the tokens of one prompt."""
    return min(SCORED_PIECE_BYTES, prompt_tokens * scored_token_bytes(structure.vocab_size))


def capture_need(
    structure: ModelStructure,
    hooks: Sequence[str],
    capture: CaptureSpec,
    *,
    prompt_tokens: int,
    generated_tokens: int = 1,
) -> CaptureNeed:
    """Memory that capturing these hooks adds to one sample.

    Args:
        generated_tokens: 0 if the prompt is only read, and logits have rows for all of it.
    """
    strips = [0]
    summaries = 0
    for hook in hooks:
        if stores_every_row(capture):
            count = rows_of(structure, hook, capture, prompt_tokens, min(generated_tokens, 1))
            strips.append(count * hook_bytes(structure, hook, capture.dtype, capture.features))
        summaries += hook_width(structure, hook, capture.features) * _summary_bytes(capture)
    decodes = generated_tokens and capture.positions not in ("prompt", "last", "last_prompt")
    return CaptureNeed(
        prompt_rows=sum(strips),
        largest_strip=max(strips),
        step=bytes_per_token(structure, hooks) if decodes else 0,
        summaries=summaries,
    )


def _summary_bytes(capture: CaptureSpec) -> int:
    """Most bytes per channel on the device to reduce rows and to compute statistics."""
    total = 0 if capture.reduce == "none" else 4 * _REDUCED_HELD
    if capture.stats is not None:
        held = _STATISTICS_HELD + (capture.stats.threshold is not None)
        total += STATISTIC_BYTES * (3 * held + _STATISTICS_IN_PASSING)
    return total


def batch_memory(
    structure: ModelStructure,
    kv_bytes: int,
    capture: CaptureNeed,
    *,
    samples: int,
    prompt_tokens: int,
    max_tokens: int,
    scored: int = 0,
) -> BatchMemory:
    """Memory of samples that run at once.

    Args:
        kv_bytes: bytes of one token in the key-value cache.
        capture: need of the longest prompt, see `capture_need`.
        prompt_tokens: length of the longest prompt.
        max_tokens: 0 if prompts are only read, without a cache and without a step's logits.
        scored: bytes for prompts' logits, whatever the size of the batch.
    """
    tokens = min(prompt_tokens + max_tokens, structure.context_length)
    return BatchMemory(
        cache=samples * tokens * kv_bytes if max_tokens else 0,
        logits=samples * _LOGITS_COPIES * 4 * structure.vocab_size if max_tokens else 0,
        activations=samples * activation_bytes(structure, prompt_tokens=prompt_tokens),
        attention=attention_bytes(structure, prompt_tokens=prompt_tokens, samples=samples),
        summaries=samples * capture.summaries,
        in_flight=capture.in_flight(samples),
        scored=scored,
    )


def held_rows_bytes(budget: Budget, capture: CaptureNeed, sample_bytes: int, *, samples: int) -> int:
    """Most host memory of a batch's captured rows before they are written.

    Args:
        sample_bytes: bytes of all captured rows of one sample.
    """
    return min(budget.host_buffer_bytes + capture.in_flight(samples), sample_bytes * samples)


def batch_size(
    structure: ModelStructure,
    kv_bytes: int,
    capture: CaptureNeed,
    budget: Budget,
    *,
    prompt_tokens: int,
    max_tokens: int,
    scored: int = 0,
) -> int:
    """Samples to run at once, at least 1; arguments as in `batch_memory`.

    The host's buffer does not divide the batch, since the writer empties it when it is full. Only the rows
    of one hook are not divided: they must fit.
    """
    usable = budget.usable_bytes
    if not budget.on_gpu and (capture.prompt_rows or capture.step):
        usable -= budget.host_buffer_bytes  # in the same memory
    most = budget.cap
    if capture.largest_strip:
        most = max(1, min(most, budget.host_buffer_bytes // capture.largest_strip))

    def needed(samples: int) -> int:
        return batch_memory(
            structure,
            kv_bytes,
            capture,
            samples=samples,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            scored=scored,
        ).device

    return max(1, bisect_right(range(1, most + 1), usable, key=needed))
