"""Token choice: temperature, top-k, top-p and a counter-based Gumbel-max draw.

The noise of a token is a pure function of (sample seed, step, vocabulary index), so a sample's
tokens depend neither on its batch-mates nor on its place in the batch nor on torch's generators,
and a run that is resumed draws what an undisturbed one would have drawn.

Gumbel-max: argmax(logits + g) with g standard Gumbel is a draw from softmax(logits) (Gumbel 1954;
Maddison, Tarlow & Minka 2014). The generator is SplitMix64's output function (Steele, Lea & Flood
2014) over a counter.
"""

from collections.abc import Sequence

import torch
from transformers import LogitsProcessor

from actograph.contract.specs import SamplingSpec


def signed(value: int) -> int:
    """The int64 with the bits of a 64-bit unsigned integer."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GAMMA = signed(0x9E3779B97F4A7C15)
_MIX_1 = signed(0xBF58476D1CE4E5B9)
_MIX_2 = signed(0x94D049BB133111EB)
_UNITS = 1 << 52
_UNIT = 1 / _UNITS
# Candidates looked at first for top-p: enough for nearly every step, and a partial sort of a
# 150k vocabulary costs a tenth of a full one on a CPU.
_TOP_P_FIRST = 1024
_ROW_BY_ROW = 1 << 18
# Noise of 52 bits and a half lies between -3.61 and 36.74: a value further below the largest cannot win.
_NOISE_SPAN = 40.4
# of a bound that float32 computes within 1e-5
_ROUNDING = 0.999


def _shift(value: torch.Tensor, bits: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """Logical right shift; torch's `>>` carries the sign along."""
    return torch.bitwise_right_shift(value, bits, out=out).bitwise_and_((1 << (64 - bits)) - 1)


def mix64(value: torch.Tensor) -> torch.Tensor:
    """SplitMix64's output function on int64 (arithmetic wraps modulo 2**64)."""
    return _mix(value.clone(), torch.empty_like(value))


def _mix(value: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    """`mix64` in place."""
    value.bitwise_xor_(_shift(value, 30, scratch)).mul_(_MIX_1)
    value.bitwise_xor_(_shift(value, 27, scratch)).mul_(_MIX_2)
    return value.bitwise_xor_(_shift(value, 31, scratch))


def _keys(seeds: torch.Tensor, step: int | torch.Tensor) -> torch.Tensor:
    """State of each row's generator before its first token, int64 [batch]."""
    counter = (step + 1) * _GAMMA
    return mix64(mix64(seeds + _GAMMA) + (signed(counter) if isinstance(counter, int) else counter))


def uniform(seeds: torch.Tensor, step: int | torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Uniforms strictly inside (0, 1), float64, shape of `index`.

    Args:
        seeds: int64 [batch].
        step: 0 for the first generated token; int64 [batch] where the rows are at different ones.
        index: int64 [batch, n] or [1, n]: vocabulary indices.
    """
    return _unit(_shift(mix64(_keys(seeds, step)[:, None] + (index + 1) * _GAMMA), 12))


def _unit(bits: torch.Tensor) -> torch.Tensor:
    """52 bits and a half: every value is exact in float64, the smallest 2**-53, the largest 1 - 2**-53."""
    return bits.to(torch.float64).add_(0.5).mul_(_UNIT)


def gumbel(seeds: torch.Tensor, step: int | torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float64; see `uniform` for the arguments."""
    return _noise(uniform(seeds, step, index))


def _noise(uniforms: torch.Tensor) -> torch.Tensor:
    return uniforms.log_().neg_().log_().neg_()


def drawn(
    values: torch.Tensor, index: torch.Tensor | None, seeds: torch.Tensor, step: int | torch.Tensor
) -> torch.Tensor:
    """Position of the winning candidate in each row, int64 [batch].

    Args:
        values: float32 [batch, n], as `candidates` returns them.
        index: vocabulary indices of `values`; None if they are the whole vocabulary in order.
        seeds: int64 [batch].
        step: as in `uniform`.
    """
    every = torch.arange(values.shape[-1], device=values.device)[None] if index is None else index
    at_once = values.device.type != "cpu" or values.numel() < _ROW_BY_ROW
    if at_once or not bool(values.amax(-1).isfinite().all()):
        return gumbel(seeds, step, every).add_(values).argmax(-1)
    counters = (every + 1) * _GAMMA
    # a row at a time stays in the CPU's cache, and its largest temporaries in the same pages
    scratch = torch.empty(2, values.shape[-1], dtype=torch.int64)
    rows = zip(values, counters.expand(len(values), -1), _keys(seeds, step), strict=True)
    return torch.stack([_winner(*row, scratch) for row in rows])


def _winner(
    values: torch.Tensor, counters: torch.Tensor, key: torch.Tensor, scratch: torch.Tensor
) -> torch.Tensor:
    """Position of the largest sum of value and noise in a row whose largest value is finite.

    Logarithms are taken for the few tokens that can win. With u a token's uniform, its score is
    value - log(-log(u)). It reaches a score z only if 1 - u <= -log(u) <= exp(value - z), so only if
    exp(value) / (1 - u) >= exp(z). All values are taken relative to the largest.
    """
    largest = values.max()
    close = values > largest - _NOISE_SPAN
    near = None
    if int(close.count_nonzero()) * 2 < len(values):
        near = close.nonzero()[:, 0]
        values, counters = values[near], counters[near]
    bits, other = scratch[:, : len(values)]
    _shift(_mix(torch.add(counters, key, out=bits), other), 12, bits)
    units = torch.sub(_UNITS, bits, out=other).to(torch.float32).sub_(0.5)  # of 1 - u
    ratio = (values - largest).exp_().div_(units)
    first = ratio.argmax()
    score = _noise(_unit(bits[first])) + values[first]
    few = (ratio >= (score - largest).exp_() * (_ROUNDING / _UNITS)).nonzero()[:, 0]
    best = few[_noise(_unit(bits[few])).add_(values[few]).argmax()]
    return best if near is None else near[best]


def candidates(
    logits: torch.Tensor, *, temperature: float, top_k: int | None, top_p: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The tokens that may be drawn, warped in transformers' order: temperature, top-k, top-p.

    Args:
        logits: float32 [batch, vocab].

    Returns:
        Scaled logits [batch, n], -inf where a token is ruled out, and their vocabulary indices
        [batch, n]; None for the indices where all tokens remain, in vocabulary order.
    """
    scores = logits / temperature
    vocab = scores.shape[-1]
    if top_k is not None and top_k < vocab:
        values, index = scores.topk(top_k, dim=-1)
        # top-p counts probability among the k that are left
        return (_nucleus(values, values.softmax(-1), top_p) if top_p < 1.0 else values), index
    if top_p >= 1.0:
        return scores, None
    log_total = scores.logsumexp(-1, keepdim=True)
    first = min(_TOP_P_FIRST, vocab)
    values, index = scores.topk(first, dim=-1)
    probs = (values - log_total).exp()
    short = probs.sum(-1) < top_p
    if first < vocab and bool(short.any()):
        # the rows that need more, and no others: of equal logits `sort` may keep others than `topk`, and
        # what a row may draw must not depend on its neighbours
        more = scores[short].sort(dim=-1, descending=True)
        values = _widened(values, vocab, -torch.inf).index_put((short,), more.values)
        index = _widened(index, vocab, 0).index_put((short,), more.indices)
        probs = (values - log_total).exp()
    return _nucleus(values, probs, top_p), index


def _widened(rows: torch.Tensor, width: int, filler: float) -> torch.Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[-1]), value=filler)


def _nucleus(values: torch.Tensor, probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the likeliest tokens up to and with the one that reaches `top_p`; input descending."""
    before = probs.cumsum(-1) - probs
    return values.masked_fill(before >= top_p, -torch.inf)


class GumbelSampler(LogitsProcessor):
    """Leaves one token per row: transformers' greedy argmax then takes it.

    Args:
        spec: temperature above 0, top_k, top_p.
        seeds: one per row of the batch.
        prompt_length: padded length of the prompts, from which the step is counted.
        device: where the logits will be.
    """

    def __init__(
        self, spec: SamplingSpec, seeds: Sequence[int], prompt_length: int, device: torch.device
    ) -> None:
        if spec.temperature <= 0:
            raise ValueError("temperature 0 is greedy decoding and needs no sampler")
        self._spec = spec
        self._seeds = torch.tensor([signed(seed) for seed in seeds], dtype=torch.int64, device=device)
        self._prompt_length = prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        spec = self._spec
        values, index = candidates(scores, temperature=spec.temperature, top_k=spec.top_k, top_p=spec.top_p)
        chosen = drawn(values, index, self._seeds, input_ids.shape[1] - self._prompt_length)[:, None]
        if index is not None:
            chosen = index.gather(1, chosen)
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)  # type: ignore[return-value]
