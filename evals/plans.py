"""Sizes of a job: rows, sessions, weights, and the memory of a run. No torch, no I/O.

The worker divides its memory with it, and the API estimates and refuses jobs with it.
Sizes are bytes, lengths are tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from actograph.contract.head_columns import head_width
from actograph.contract.models import ModelStructure
from actograph.contract.readouts import VALUE_BYTES, is_readout
from actograph.contract.row_selection import (
    Features,
    FirstFeatures,
    HeadFeatures,
    NamedPositions,
    Selection,
    held_back,
)
from actograph.contract.saes import PAIR_BYTES, SaeConfig, is_latents
from actograph.contract.specs import CaptureSpec, Dtype
from actograph.dtypes import BY_TORCH, row_bytes

_LONG_BYTES = 8
#: mean, variance, min, max, rms and kurtosis of a channel
_STATISTICS = 6
_STATISTIC_BYTES = 8
_MEAN_BYTES = 4
#: manifest and file headers of a session, and the part of each hook
_SESSION_BYTES = 2560
_HOOK_BYTES = 464
#: of the text of a token in the manifest
_TEXT_BYTES = 10


def item_bytes(dtype: str) -> int:
    """Bytes of one number of this dtype; 4 for unknown dtypes."""
    known = BY_TORCH.get(dtype)
    return 4 if known is None else known.bits.itemsize


def weights_bytes(structure: ModelStructure) -> int:
    """Bytes of the parameters, in the dtype of the loaded model."""
    if structure.weights_bytes is not None:
        return structure.weights_bytes
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
    if isinstance(features, HeadFeatures):
        return min(width, len(features.heads) * (head_width(hook, structure) or width))
    return width if features is None else len(features.indices)


def _source_dtype(structure: ModelStructure, hook: str) -> str:
    info = structure.tensor_of(hook)
    return structure.dtype if info is None else info.dtype


def bytes_per_token(
    structure: ModelStructure, hooks: Sequence[str], dtype: Dtype = "model", features: Features | None = None
) -> int:
    """Bytes of one stored row over all `hooks`. Integers, such as expert indices, keep their dtype.

    Names of latents and readouts count nothing, see `computed_bytes`.
    """
    total = 0
    for hook in hooks:
        if _is_computed(hook):
            continue
        own = _source_dtype(structure, hook)
        stored = own if dtype == "model" or own.startswith("int") else dtype
        width = _width(structure, hook, features)
        total += row_bytes(BY_TORCH[stored], width) if stored in BY_TORCH else width * item_bytes(stored)
    return total


def _is_computed(name: str) -> bool:
    """Whether a name is one of latents or a readout."""
    return is_latents(name) or is_readout(name)


def computed_bytes(capture: CaptureSpec) -> int:
    """Bytes of the latents and readouts of one row, by all SAEs and vectors of a capture."""
    return PAIR_BYTES * sum(one.top for one in capture.saes) + VALUE_BYTES * len(capture.readouts)


def readout_bytes(widths: Sequence[int]) -> int:
    """Bytes that readouts with vectors of these widths take of a run, with a block of rows, in float64."""
    return 8 * (sum(widths) + len(widths) + BLOCK_ROWS * max(widths)) if widths else 0


def sae_bytes(config: SaeConfig) -> int:
    """Bytes that an SAE takes of a run: its encoder in float32, and the activations of a block of rows.

    A gated encoder has two vectors more, and its gates beside the activations.
    """
    vectors = {"standard": 1, "topk": 2, "jumprelu": 2, "gated": 3}[config.architecture]
    activations = (2 if config.architecture == "gated" else 1) * BLOCK_ROWS * config.d_sae
    return 4 * (config.d_in * config.d_sae + config.d_in + vectors * config.d_sae + activations)


def reduced_dtype(dtype: Dtype) -> Dtype:
    """Dtype of reduced rows: float32 instead of 8-bit floats."""
    return "float32" if dtype == "float8_e4m3fn" else dtype


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
    if capture.saes or capture.readouts:
        rows = max(rows_of(structure, hook, capture, prompt_tokens, generated_tokens) for hook in hooks)
        total = rows * computed_bytes(capture)
    for hook in hooks:
        if _is_computed(hook):
            continue
        rows = rows_of(structure, hook, capture, prompt_tokens, generated_tokens)
        if capture.stats is not None and rows:
            total += _LONG_BYTES + _width(structure, hook, capture.features) * per_channel
        if capture.reduce != "none":
            rows = min(rows, 1)
        if keeps_tensors(capture):
            dtype = reduced_dtype(capture.dtype) if capture.reduce != "none" else capture.dtype
            total += rows * bytes_per_token(structure, [hook], dtype, capture.features)
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
    # latents are two tensors
    tensors = len(hooks) * per_hook + len(capture.saes)
    headers = _SESSION_BYTES + texts + _LONG_BYTES * numbers + tensors * _HOOK_BYTES
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
#: share of a run's memory on a GPU that is kept for blocks of captured rows
BLOCKS_SHARE = 0.25
#: share of a GPU's memory for blocks, an eighth, that captures of one kind leave to others
BLOCKS_LEFT = 8
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


#: numbers that the choice of tokens takes in at once; bytes for each of them, and for each further logit
_CHOSEN_AT_ONCE, _CHOICE_BYTES, _LOGIT_BYTES = 1 << 24, 48, 11


def choice_bytes(rows: int, vocabulary: int) -> int:
    """Bytes of the logits of a pass on a GPU and of the choice of tokens by them.

    Within 15 % of what the engine takes over fake CUDA tensors (tests/integration/worker/test_fake_cuda.py).

    Args:
        rows: requests that choose a token.
    """
    numbers = rows * vocabulary
    at_once = min(numbers, _CHOSEN_AT_ONCE)
    return _CHOICE_BYTES * at_once + _LOGIT_BYTES * (numbers - at_once)


#: tokens of a pass on a CPU, and of a pass of prompts on a GPU while a chat is being written
STEP_TOKENS = 512
#: tokens of a pass of prompts on a GPU, at most
PROMPT_TOKENS = 8192
#: share of a GPU's free memory that such a pass takes at most, if it is longer than `STEP_TOKENS`
_PROMPTS_SHARE = 8


def prompt_tokens(free: int, room: int, step_bytes: int) -> int:
    """Tokens of a pass of prompts on a GPU, a multiple of `STEP_TOKENS`.

    Args:
        free: bytes that are free beside the weights and `GPU_SPARE`.
        room: tokens for whose keys and values there is memory.
        step_bytes: bytes that a pass of `STEP_TOKENS` takes; others grow with their tokens at most.
    """
    affordable = STEP_TOKENS * (free // _PROMPTS_SHARE) // max(1, step_bytes)
    tokens = min(PROMPT_TOKENS, room, affordable)
    return max(STEP_TOKENS, tokens // STEP_TOKENS * STEP_TOKENS)


@dataclass(frozen=True, kw_only=True)
class RunMemory:
    """Memory that a run takes when it begins.

    Attributes:
        total: bytes on the model's device; on a CPU rows take of them too.
        tokens: number of tokens whose keys and values are held.
        for_keys: bytes of these keys and values.
        for_blocks: bytes on a GPU for blocks of rows; 0 on a CPU, which has them in the host's memory.
        for_rows: bytes of host memory for captured rows.
    """

    total: int
    tokens: int
    for_keys: int
    for_blocks: int
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
        row_bytes: most host memory for captured rows.
    """
    most_keys = total - int(BLOCKS_SHARE * total) if on_gpu else int(KEYS_SHARE * total)
    tokens = min(slots * context, most_keys // token_bytes)
    left = total - tokens * token_bytes
    return RunMemory(
        total=total,
        tokens=tokens,
        for_keys=tokens * token_bytes,
        for_blocks=left if on_gpu else 0,
        for_rows=row_bytes if on_gpu else min(left, row_bytes),
    )


def summed_channel_bytes(reduce: str, *, statistics: bool, counted: bool, item: int) -> int:
    """Bytes of what a sample keeps of one channel while its rows are summed up.

    Args:
        reduce: of `CaptureSpec`; a mean is a float32, others have the dtype of the rows.
        statistics: moments and extremes in float64.
        counted: with a count of large magnitudes, in int64.
        item: bytes of one number of the rows.
    """
    reduced = 0 if reduce == "none" else _MEAN_BYTES if reduce == "mean" else item
    return reduced + statistics * (_STATISTICS * _STATISTIC_BYTES + counted * _LONG_BYTES)


@dataclass(frozen=True, kw_only=True)
class RowNeed:
    """Bytes that one request holds for its captured rows from its start to its end.

    On a CPU all of them are in the memory of its run.

    Attributes:
        block: a block of rows that are delivered: on a GPU, and again on its host.
        summed: a block of rows that are summed up alone, on the device.
        sums: the sums, on the device.
        held: rows that wait for the end of the sample, on the host.
        encoders: SAEs and vectors of readouts, on the device, once for all requests with them.
    """

    block: int = 0
    summed: int = 0
    sums: int = 0
    held: int = 0
    encoders: int = 0

    @property
    def on_device(self) -> int:
        """Bytes on a GPU."""
        return self.block + self.summed + self.sums

    @property
    def spare(self) -> int:
        """Bytes on a GPU once for all requests with this layout: rows that nobody keeps, and encoders."""
        return self.block + self.summed + self.encoders

    @property
    def on_host(self) -> int:
        """Bytes on the host of a GPU."""
        return self.block + self.held

    @property
    def together(self) -> int:
        """Bytes on a CPU, without encoders."""
        return self.block + self.summed + self.sums + self.held


def row_need(*, kept: int, summed: int = 0, sums: int = 0, held_rows: int = 0, encoders: int = 0) -> RowNeed:
    """Memory of one request's rows.

    Args:
        kept: bytes of one token's rows that are delivered.
        summed: the same of rows in blocks that are summed up alone.
        sums, encoders: see `RowNeed`.
        held_rows: rows that wait for the end of the sample.
    """
    return RowNeed(
        block=BLOCK_ROWS * kept,
        summed=BLOCK_ROWS * summed,
        sums=sums,
        held=held_rows * kept,
        encoders=encoders,
    )


def rows_fit(need: RowNeed, *, device: int | None, host: int, requests: int = 1) -> bool:
    """Whether the rows of so many equal requests fit.

    Args:
        device: bytes of a GPU for blocks; None on a CPU.
        host: bytes of the host for rows.
    """
    if device is None:
        return need.encoders + requests * need.together <= host
    return need.spare + requests * need.on_device <= device and requests * need.on_host <= host


@dataclass(frozen=True, kw_only=True)
class SampleNeed:
    """Bytes that one sample takes of a run.

    Attributes:
        keys: keys and values of all its tokens, reserved from its start.
        held: what it holds for its rows from its start to its end.
        rows: all its rows, if none left before its end.
    """

    keys: int
    held: RowNeed = RowNeed()
    rows: int = 0


def sample_need(
    structure: ModelStructure,
    hooks: Sequence[str],
    capture: CaptureSpec,
    *,
    token_bytes: int,
    prompt_tokens: int,
    generated_tokens: int,
    saes: Sequence[SaeConfig] = (),
    readouts: Sequence[int] = (),
) -> SampleNeed:
    """Memory of one sample.

    Args:
        token_bytes: keys and values of one token.
        saes: those of the capture, each once.
        readouts: widths of the vectors of the capture's readouts.
        generated_tokens: 0 if the prompt is only read.
    """
    tokens = min(prompt_tokens + max(0, generated_tokens - 1), structure.context_length)
    features = capture.features
    stored = bytes_per_token(structure, hooks, capture.dtype, features) + computed_bytes(capture)
    source = bytes_per_token(structure, hooks, "model", features)
    keeps, sums_up = stores_every_row(capture), capture.reduce != "none" or capture.stats is not None
    counted = capture.stats is not None and capture.stats.threshold is not None
    back = held_back(capture.positions) if keeps else None
    held = row_need(
        kept=stored if keeps else 0,
        # rows are summed up as the model computes them
        summed=source if sums_up and not (keeps and stored == source) else 0,
        sums=sum(
            _width(structure, hook, features)
            * summed_channel_bytes(
                capture.reduce,
                statistics=capture.stats is not None,
                counted=counted,
                item=bytes_per_token(structure, [hook], "model", features)
                // _width(structure, hook, features),
            )
            for hook in hooks
            if not _is_computed(hook)
        ),
        held_rows=0 if back is None else back[1],
        encoders=sum(map(sae_bytes, saes)) + readout_bytes(readouts),
    )
    rows = 0
    if keeps:
        sizes = {"prompt_tokens": prompt_tokens, "generated_tokens": generated_tokens}
        rows = max(held.block + held.held, tensor_bytes(structure, hooks, capture, **sizes))
    return SampleNeed(keys=tokens * token_bytes, held=held, rows=rows)


def samples_at_once(room: RunMemory, need: SampleNeed, slots: int) -> int:
    """Samples of equal needs that run at once, at least 1."""
    fit, held = min(slots, room.for_keys // max(1, need.keys)), need.held
    if room.for_blocks:
        for_blocks = room.for_blocks
        if held.spare + fit * held.on_device > for_blocks:
            for_blocks -= for_blocks // BLOCKS_LEFT
        fit = min(fit, (for_blocks - held.spare) // max(1, held.on_device))
        fit = min(fit, room.for_rows // max(1, held.on_host))
    elif held.together:
        fit = min(fit, (room.for_rows - held.encoders) // held.together)
    return max(1, fit)


def samples_that_fit(room: RunMemory, need: SampleNeed, slots: int) -> int:
    """As `samples_at_once`, but 0 if not even one sample fits."""
    on_host = need.held.on_host if room.for_blocks else need.held.on_host + need.held.encoders
    fits = fits_device(room, need) and on_host <= room.for_rows
    return samples_at_once(room, need, slots) if fits else 0


def fits_device(room: RunMemory, need: SampleNeed, samples: int = 1) -> bool:
    """Whether so many samples of equal needs run at once, as far as the model's device decides."""
    blocks = not room.for_blocks or need.held.spare + samples * need.held.on_device <= room.for_blocks
    return blocks and samples * need.keys <= room.for_keys
