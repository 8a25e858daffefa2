"""Token choice: temperature, top-k, top-p and a counter-based Gumbel-max draw.

The noise of a token is a pure function of (sample seed, step, vocabulary index), so a sample's
tokens depend neither on other requests nor on its place among them nor on torch's generators,
and a run that is resumed draws what an undisturbed one would have drawn.

Gumbel-max: argmax(logits + g) with g standard Gumbel is a draw from softmax(logits) (Gumbel 1954;
Maddison, Tarlow & Minka 2014). The generator is SplitMix64's output function (Steele, Lea & Flood
2014) over a counter.
"""

import math
from collections.abc import Sequence

import torch


def signed(value: int) -> int:
    """The int64 with the bits of a 64-bit unsigned integer."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GAMMA = signed(0x9E3779B97F4A7C15)
_MIX_1 = signed(0xBF58476D1CE4E5B9)
_MIX_2 = signed(0x94D049BB133111EB)
_UNIT = 2.0**-52
#: numbers of noise that are made at once, at most
_MOST_NOISE = 1 << 23
# Candidates looked at first for top-p: enough for nearly every step, and a partial sort of a
# 150k vocabulary costs a tenth of a full one on a CPU.
_TOP_P_FIRST = 1024


def _shift(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift; torch's `>>` carries the sign along."""
    return (value >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def mix64(value: torch.Tensor) -> torch.Tensor:
    """SplitMix64's output function on int64 (arithmetic wraps modulo 2**64)."""
    value = (value ^ _shift(value, 30)).mul_(_MIX_1)
    value.bitwise_xor_(_shift(value, 27)).mul_(_MIX_2)
    return value.bitwise_xor_(_shift(value, 31))


def uniform(seeds: torch.Tensor, step: int | torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Uniforms strictly inside (0, 1), float64, shape of `index`.

    Args:
        seeds: int64 [batch].
        step: 0 for the first generated token; int64 [batch] if it is not the same for all.
        index: int64 [batch, n] or [1, n]: vocabulary indices.
    """
    number = torch.as_tensor(step, device=seeds.device) + 1
    row = mix64(mix64(seeds + _GAMMA) + number * _GAMMA)
    bits = mix64(row[:, None] + (index + 1) * _GAMMA)
    # 52 bits and a half: every value is exact in float64, the smallest 2**-53, the largest 1 - 2**-53
    return _shift(bits, 12).to(torch.float64).add_(0.5).mul_(_UNIT)


def gumbel(seeds: torch.Tensor, step: int | torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float64; see `uniform` for the arguments."""
    return uniform(seeds, step, index).log_().neg_().log_().neg_()


def candidates(
    logits: torch.Tensor, *, temperature: float, top_k: int | None, top_p: float, min_p: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The tokens that may be drawn, warped in vLLM's order: temperature, min-p, top-k, top-p.

    Args:
        logits: float32 [batch, vocab].

    Returns:
        Scaled logits [batch, n], -inf where a token is ruled out, and their vocabulary indices
        [batch, n]; None for the indices where all tokens remain, in vocabulary order.
    """
    scores = logits / temperature
    if min_p > 0.0:
        scores = scores.masked_fill(scores < scores.amax(-1, keepdim=True) + math.log(min_p), -torch.inf)
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


def draw(
    scores: torch.Tensor,
    *,
    seeds: Sequence[int],
    steps: Sequence[int],
    temperature: float,
    top_k: int | None,
    top_p: float,
    min_p: float = 0.0,
) -> torch.Tensor:
    """Draw a token for each row, int64 [rows].

    Args:
        scores: float32 logits, [rows, vocabulary].
        steps: of each row, 0 for its first generated token.
        temperature: above 0.
    """
    values, index = candidates(scores, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    every = torch.arange(scores.shape[-1], device=scores.device)[None]
    numbers = torch.tensor([[signed(seed) for seed in seeds], list(steps)], device=scores.device)
    drawn = []
    size = max(1, _MOST_NOISE // values.shape[-1])
    for at in range(0, len(values), size):
        some = slice(at, at + size)
        own = every if index is None else index[some]
        best = gumbel(numbers[0, some], numbers[1, some], own).add_(values[some]).argmax(-1, keepdim=True)
        drawn.append(best if index is None else own.gather(1, best))
    return torch.cat(drawn)[:, 0]
