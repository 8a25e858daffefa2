"""The arithmetic of a plan: what a job takes on device, host and disk. No torch, no I/O.

The worker chooses its batches by it and the API answers and refuses by it, so that both say the
same. Sizes are bytes, lengths are tokens, all per sample unless said otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from actograph.contract.resources import ModelStructure
from actograph.contract.row_selection import Features, FirstFeatures, Stride
from actograph.contract.specs import CaptureSpec, Dtype

CPU_BATCH_CAP = 16
GPU_BATCH_CAP = 64
#: share of the free memory that a plan may use; the rest is for what the forward pass makes in passing
USABLE = 0.6
#: hidden tensors alive at once while a prompt is read: a handful, of which some are several times wider
_PREFILL_TENSORS = 16
#: the same per expert that a token is sent to: what it takes in, what it gives, and that weighted
_EXPERT_TENSORS = 3
#: float32 copies of one step's logits that sampling makes
_LOGITS_COPIES = 3
#: logits of prompts' tokens that are held at once where these are scored, see `scored_token_bytes`; a whole
#: prompt's are never held
SCORED_PIECE_BYTES = 128 << 20
_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}
_LONG_BYTES = 8
#: mean, variance, min, max, rms and kurtosis of a channel
_STATISTICS = 6
_STATISTIC_BYTES = 8
#: the same while rows pass: a running summary per channel, that of the newest rows, their merge, and what
#: merging makes in passing, in numbers of float64 (with a threshold one more each)
_STATISTICS_HELD, _STATISTICS_IN_PASSING = 6, 8
#: a reduced row, that of the newest rows, and their merge, in numbers of float32 at most
_REDUCED_HELD = 3
#: a manifest and the headers of the files, beside what each hook adds to them
_SESSION_BYTES = 2560
_HOOK_BYTES = 416


#: segments that a model writes itself
_GENERATED_SEGMENTS = ("think", "answer", "tool_call")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a worker may use; `cap` is the most samples that it runs at once."""

    #: bytes that can be allocated on the device that holds the model
    device_bytes: int
    #: bytes that captured rows may take in host memory per batch
    host_buffer_bytes: int
    cap: int
    on_gpu: bool


def is_gpu(structure: ModelStructure) -> bool:
    return structure.device.startswith("cuda")


def batch_cap(*, on_gpu: bool) -> int:
    """Most samples at once, however much memory there is."""
    return GPU_BATCH_CAP if on_gpu else CPU_BATCH_CAP


def item_bytes(dtype: str) -> int:
    """Bytes of one number of this dtype; 4 for a name that is not known."""
    return _ITEM_BYTES.get(dtype, 4)


def hook_bytes(
    structure: ModelStructure, hook: str, dtype: Dtype = "model", features: Features | None = None
) -> int:
    """Bytes of one stored row of a hook.

    Integers (expert indices) are stored as they are, whatever `dtype` says. A location that the
    structure tells nothing of counts as wide as the hidden state.
    """
    info = structure.tensor_of(hook)
    own = structure.dtype if info is None else info.dtype
    stored = own if dtype == "model" or own.startswith("int") else dtype
    return hook_width(structure, hook, features) * item_bytes(stored)


def hook_width(structure: ModelStructure, hook: str, features: Features | None = None) -> int:
    """Channels of a hook that are kept."""
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
    """Bytes of the parameters, in the dtype that the model was loaded in."""
    return structure.num_parameters * item_bytes(structure.dtype)


def kept_rows(capture: CaptureSpec, prompt_tokens: int, generated_tokens: int, *, tail_only: bool) -> int:
    """Rows that are stored of a hook: at most P+G-1, or P where nothing is generated.

    How long a segment will be is not known before: one that can only be generated counts as all
    that is generated, any other as every row.

    Args:
        tail_only: the model computes this tensor from the last prompt token on (logits), see `is_tail_only`.
    """
    first = prompt_tokens - 1 if tail_only and generated_tokens else 0
    stop = prompt_tokens + max(0, generated_tokens - 1)
    match capture.positions:
        case "last" | "last_prompt":
            return 1
        case str(name):
            return _segment_rows([name], first, prompt_tokens, stop)
        case Stride(stride=stride):
            return -(-stop // stride) - -(-first // stride)
        case [str(), *_] as segments:
            return _segment_rows([str(name) for name in segments], first, prompt_tokens, stop)
        case tokens:
            numbers = {int(t) + prompt_tokens if int(t) < 0 else int(t) for t in tokens}
            return sum(first <= number < stop for number in numbers)


def is_tail_only(structure: ModelStructure, hook: str) -> bool:
    """Whether the model computes this tensor from the last prompt token on while it generates."""
    info = structure.tensor_of(hook)
    return info is not None and info.tail_only


def _segment_rows(names: Sequence[str], first: int, prompt_tokens: int, stop: int) -> int:
    if set(names) <= {"prompt"}:
        return prompt_tokens - first
    if set(names) <= {"generated", *_GENERATED_SEGMENTS}:
        return stop - prompt_tokens
    return stop - first


def tensor_bytes(
    structure: ModelStructure,
    hooks: Sequence[str],
    capture: CaptureSpec,
    *,
    prompt_tokens: int,
    generated_tokens: int,
) -> int:
    """Bytes of the tensors of one session: rows, reduced rows and statistics of every hook.

    Exact where it is known before which rows there will be, see `kept_rows`.
    """
    total, per_channel = 0, sum(_statistics_bytes(capture))
    for hook in hooks:
        rows = _rows_of(structure, hook, capture, prompt_tokens, generated_tokens)
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
    if not isinstance(capture.positions, str) or capture.positions in _GENERATED_SEGMENTS:
        # the tokens of rows that need not be consecutive
        numbers += max(_rows_of(structure, hook, capture, prompt_tokens, generated_tokens) for hook in hooks)
    return (
        _SESSION_BYTES
        + _LONG_BYTES * numbers
        + len(hooks) * per_hook * _HOOK_BYTES
        + tensor_bytes(
            structure, hooks, capture, prompt_tokens=prompt_tokens, generated_tokens=generated_tokens
        )
    )


def _rows_of(
    structure: ModelStructure, hook: str, capture: CaptureSpec, prompt_tokens: int, generated_tokens: int
) -> int:
    tail_only = is_tail_only(structure, hook)
    return kept_rows(capture, prompt_tokens, generated_tokens, tail_only=tail_only)


def keeps_tensors(capture: CaptureSpec) -> bool:
    """Whether rows or reduced rows are stored, and not statistics alone."""
    return capture.stats is None or capture.stats.tensors


def stores_every_row(capture: CaptureSpec) -> bool:
    """Whether storage grows with every token, and not only with every sample."""
    return capture.reduce == "none" and keeps_tensors(capture)


def _statistics_bytes(capture: CaptureSpec) -> list[int]:
    """Bytes per channel of each statistic; the count has one number for all channels."""
    if capture.stats is None:
        return []
    counted = [_LONG_BYTES] if capture.stats.threshold is not None else []
    return [0, *[_STATISTIC_BYTES] * _STATISTICS, *counted]


def run_bytes(structure: ModelStructure, kv_bytes: int, *, prompt_tokens: int, max_tokens: int) -> int:
    """Device memory of one sample: its cache, one step's logits, and what reading the prompt makes.

    Args:
        kv_bytes: that one token takes in the key-value cache.
    """
    tokens = min(prompt_tokens + max_tokens, structure.context_length)
    logits = _LOGITS_COPIES * 4 * structure.vocab_size
    return tokens * kv_bytes + logits + prefill_bytes(structure, prompt_tokens=prompt_tokens)


def scored_token_bytes(vocab_size: int) -> int:
    """Device memory of one token while its probability is taken: logits as computed, and float32 copies."""
    return (_LOGITS_COPIES + 1) * 4 * vocab_size


def scored_bytes(structure: ModelStructure, *, prompt_tokens: int) -> int:
    """Device memory that taking the probabilities of one prompt's tokens needs at most at a time."""
    return min(SCORED_PIECE_BYTES, prompt_tokens * scored_token_bytes(structure.vocab_size))


def prefill_bytes(structure: ModelStructure, *, prompt_tokens: int) -> int:
    """Device memory that reading one prompt makes in passing; each token goes to several experts."""
    tensors = _PREFILL_TENSORS + _EXPERT_TENSORS * (structure.experts_per_token or 0)
    return prompt_tokens * structure.hidden_size * item_bytes(structure.dtype) * tensors


@dataclass(frozen=True, kw_only=True)
class CaptureNeed:
    """Memory that capturing adds to one sample."""

    #: rows of the prompt that are kept: on the device until they are copied, then in the host's buffer
    prompt_rows: int = 0
    #: on the device, for `reduce` and `stats`
    summaries: int = 0

    @property
    def device_bytes(self) -> int:
        return self.prompt_rows + self.summaries


def capture_need(
    structure: ModelStructure,
    hooks: Sequence[str],
    capture: CaptureSpec,
    *,
    prompt_tokens: int,
    generated_tokens: int = 1,
) -> CaptureNeed:
    """What capturing these hooks takes beside the model's own run, for a prompt of so many tokens.

    Args:
        generated_tokens: 0 where the prompt is only read, and logits have rows for all of it.
    """
    rows = summaries = 0
    for hook in hooks:
        if stores_every_row(capture):
            count = _rows_of(structure, hook, capture, prompt_tokens, min(generated_tokens, 1))
            rows += count * hook_bytes(structure, hook, capture.dtype, capture.features)
        summaries += hook_width(structure, hook, capture.features) * _summary_bytes(capture)
    return CaptureNeed(prompt_rows=rows, summaries=summaries)


def _summary_bytes(capture: CaptureSpec) -> int:
    """Bytes per channel that summing up rows takes on the device, at the moment when it takes most."""
    total = 0 if capture.reduce == "none" else 4 * _REDUCED_HELD
    if capture.stats is not None:
        held = _STATISTICS_HELD + (capture.stats.threshold is not None)
        total += _STATISTIC_BYTES * (3 * held + _STATISTICS_IN_PASSING)
    return total


def buffered_bytes(budget: Budget, sample_bytes: int, *, samples: int) -> int:
    """Host memory that what a batch captures takes at most before it goes to disk.

    Args:
        sample_bytes: of all tensors of one sample, see `tensor_bytes`.
    """
    return min(budget.host_buffer_bytes, sample_bytes * samples)


def batch_size(
    structure: ModelStructure,
    kv_bytes: int,
    capture: CaptureNeed,
    budget: Budget,
    *,
    prompt_tokens: int,
    max_tokens: int,
    held_bytes: int = 0,
) -> int:
    """Samples to run at once, at least 1.

    Args:
        capture: of the longest prompt, see `capture_need`.
        prompt_tokens: of the longest prompt.
        held_bytes: what a batch takes on the device whatever its size.
    """
    usable = max(0, int(budget.device_bytes * USABLE) - held_bytes)
    if not budget.on_gpu:
        usable = max(0, usable - budget.host_buffer_bytes)
    one = run_bytes(structure, kv_bytes, prompt_tokens=prompt_tokens, max_tokens=max_tokens)
    # in main memory the rows are in the host's buffer, which is set aside above
    one += capture.device_bytes if budget.on_gpu else capture.summaries
    fits = usable // max(one, 1)
    if capture.prompt_rows:
        fits = min(fits, budget.host_buffer_bytes // capture.prompt_rows)
    return max(1, min(budget.cap, fits))
