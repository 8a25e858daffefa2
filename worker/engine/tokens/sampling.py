"""Token choice: temperature, top-k, top-p and a counter-based Gumbel-max draw.

The noise of a token is a pure function of (sample seed, step, vocabulary index), so a sample's
tokens depend neither on other requests nor on its place among them nor on torch's generators,
and a run that is resumed draws what an undisturbed one would have drawn.

Gumbel-max: argmax(logits + g) with g standard Gumbel is a draw from softmax(logits) (Gumbel 1954;
Maddison, Tarlow & Minka 2014). The generator is SplitMix64's output function (Steele, Lea & Flood
2014) over a counter.
"""

from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor


def signed(value: int) -> int:
    """The int64 with the bits of a 64-bit unsigned integer."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GAMMA = signed(0x9E3779B97F4A7C15)
_MIX_1 = signed(0xBF58476D1CE4E5B9)
_MIX_2 = signed(0x94D049BB133111EB)
_UNIT = 2.0**-52
#: logits that are drawn from at once, at most: more take too much of a device's memory, or of a CPU's cache
_MOST, _MOST_ON_CPU = 1 << 24, 1 << 21
#: Candidates looked at first for top-p: enough for nearly every step, and a partial sort of a 150k vocabulary
#: costs a tenth of a full one on a CPU.
_FIRST = 1024
#: tokens of a piece, and numbers of a round, of the search for top-p; the bits of a probability of 1
_PIECE, _WAYS, _ONE = 1024, 32, 0x3F800000


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's `>>` carries the sign along."""
    return (value >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def mix64(value: Tensor) -> Tensor:
    """SplitMix64's output function on int64 (arithmetic wraps modulo 2**64)."""
    value = (value ^ _shift(value, 30)).mul_(_MIX_1)
    value.bitwise_xor_(_shift(value, 27)).mul_(_MIX_2)
    return value.bitwise_xor_(_shift(value, 31))


def uniform(seeds: Tensor, step: int | Tensor, index: Tensor) -> Tensor:
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


def gumbel(seeds: Tensor, step: int | Tensor, index: Tensor) -> Tensor:
    """Standard Gumbel noise, float64; see `uniform` for the arguments."""
    return uniform(seeds, step, index).log_().neg_().log_().neg_()


class Look(StrEnum):
    """The tokens that a draw must look at, by its sampling alone."""

    ALL = "all"  # neither top-k nor top-p
    FEW = "few"  # a top-k of a few tokens
    MANY = "many"  # a larger top-k
    NUCLEUS = "nucleus"  # as many as top-p asks for


class Warps(NamedTuple):
    """How each row chooses; tensors of [rows, 1]. Rows that look at other tokens are drawn apart.

    Attributes:
        temperature: float32, above 0.
        top_p: float32; infinity: all tokens.
        top_k: int64; for `Look.FEW` and `Look.MANY`.
        min_p: float32, the logarithm; minus infinity: all tokens. None: so for every row.
        most: the largest top-k, for `Look.FEW`.
    """

    look: Look
    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    min_p: Tensor | None = None
    most: int = 0

    def of(self, rows: slice) -> "Warps":
        """The same for some of the rows."""
        min_p = None if self.min_p is None else self.min_p[rows]
        return self._replace(
            temperature=self.temperature[rows], top_p=self.top_p[rows], top_k=self.top_k[rows], min_p=min_p
        )


def look_of(top_k: int | None, top_p: float, vocabulary: int) -> Look:
    """The tokens that a draw with this sampling must look at."""
    if top_k is not None and top_k < vocabulary:
        return Look.FEW if top_k <= _FIRST else Look.MANY
    return Look.NUCLEUS if top_p < 1.0 else Look.ALL


def candidates(logits: Tensor, warps: Warps) -> tuple[Tensor, Tensor | None]:
    """The tokens that may be drawn, warped in vLLM's order: temperature, min-p, top-k, top-p.

    A row's candidates do not depend on the other rows. No number of a GPU is read.

    Args:
        logits: float32 [rows, vocabulary].

    Returns:
        Scaled logits [rows, n], -inf where a token is ruled out, and their vocabulary indices
        [rows, n]; None for the indices where all tokens remain, in vocabulary order.
    """
    scores = logits / warps.temperature
    if warps.min_p is not None:
        scores.masked_fill_(scores < scores.amax(-1, keepdim=True) + warps.min_p, -torch.inf)
    if warps.look is Look.ALL:
        return scores, None
    if warps.look is Look.NUCLEUS:
        probs = scores.softmax(-1)
        if not reads_freely(scores):
            return scores.masked_fill_(~within(probs, warps.top_p), -torch.inf), None
        values, index, probs = _likeliest(scores, probs, warps.top_p)
        # in float64: what a sum of float32 loses depends on its order, and that on the number of rows
        before = probs.cumsum(-1, dtype=torch.float64).sub_(probs)
        return values.masked_fill_(before >= warps.top_p, -torch.inf), index
    few = warps.look is Look.FEW
    values, index = scores.topk(warps.most) if few else scores.sort(descending=True, stable=True)
    weights = (values - values[:, :1]).exp_()
    mass = weights.cumsum(-1, dtype=torch.float64)
    # top-p counts probability among the k that are left
    total = mass.gather(-1, warps.top_k - 1)
    rank = torch.arange(values.shape[-1], device=values.device)
    hidden = (mass.sub_(weights) >= warps.top_p * total) | (rank >= warps.top_k)
    return values.masked_fill_(hidden, -torch.inf), index


def reads_freely(scores: Tensor) -> bool:
    """Whether it costs nothing to read a number of these: on a CPU. A GPU would be waited for."""
    return scores.is_cpu


def _likeliest(scores: Tensor, probs: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest tokens, as many as each row needs, descending: scores, indices, probabilities."""
    vocab = scores.shape[-1]
    first = min(_FIRST, vocab)
    values, index = scores.topk(first, dim=-1)
    own = probs.gather(-1, index)
    short = own.sum(-1) < top_p[:, 0]
    if first < vocab and bool(short.any()):
        # the rows that need more, and no others: of equal logits `sort` may keep others than `topk`, and
        # what a row may draw must not depend on its neighbours
        more = scores[short].sort(dim=-1, descending=True, stable=True)
        values = _widened(values, vocab, -torch.inf).index_put((short,), more.values)
        index = _widened(index, vocab, 0).index_put((short,), more.indices)
        own = probs.gather(-1, index).masked_fill_(values.isneginf(), 0.0)
    return values, index, own


def within(probs: Tensor, top_p: Tensor) -> Tensor:
    """The likeliest tokens of each row up to and with the one that reaches `top_p`, bool [rows, vocabulary].

    Of equally likely ones the first are taken. It finds the least probability by a search over the bits of
    float32, 32 numbers in each round: in short sorted pieces their sums are found at once, and no row is
    sorted as a whole.

    Args:
        probs: float32 [rows, vocabulary].
        top_p: float32 [rows, 1].
    """
    rows, vocab = probs.shape
    pieces = torch.nn.functional.pad(probs, (0, -vocab % _PIECE), value=-1.0).view(rows, -1, _PIECE)
    pieces = pieces.sort(-1).values
    # sums of the numbers from each place on; of none at the end
    sums = pieces.clamp_min(0.0).flip(-1).cumsum(-1, dtype=torch.float64).flip(-1)
    sums = torch.nn.functional.pad(sums, (0, 1))

    def mass(bits: Tensor) -> Tensor:
        """Probability [rows, n] of all tokens that have these [rows, n], or more."""
        least = bits.to(torch.int32).view(torch.float32)[:, None].expand(-1, pieces.shape[1], -1)
        return sums.gather(-1, torch.searchsorted(pieces, least.contiguous())).sum(1)

    low = torch.zeros(rows, 1, dtype=torch.int64, device=probs.device)
    ways = torch.arange(1, _WAYS, device=probs.device)
    size = _ONE + 1
    while size > 1:
        size = -(-size // _WAYS)
        low = low + size * (mass((low + size * ways).clamp_(max=_ONE + 1)) >= top_p).sum(-1, keepdim=True)
    edge = low.clamp_(max=_ONE).to(torch.int32).view(torch.float32)
    tied = probs == edge
    before = mass(low + 1) + (tied.cumsum(-1) - 1) * edge.double()
    return (probs > edge) | (tied & (before < top_p))


def _widened(rows: Tensor, width: int, filler: float) -> Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[-1]), value=filler)


def draw(scores: Tensor, warps: Warps, seeds: Tensor, steps: Tensor) -> Tensor:
    """Draw a token for each row, int64 [rows].

    Args:
        scores: float32 logits, [rows, vocabulary].
        seeds: int64 [rows].
        steps: int64 [rows], 0 for a row's first generated token.
    """
    rows, vocab = scores.shape
    drawn = []
    size = max(1, (_MOST_ON_CPU if scores.is_cpu else _MOST) // vocab)
    for at in range(0, rows, size):
        some = slice(at, at + size)
        values, index = candidates(scores[some], warps.of(some))
        own = torch.arange(vocab, device=scores.device)[None] if index is None else index
        best = gumbel(seeds[some], steps[some], own).add_(values).argmax(-1, keepdim=True)
        drawn.append(best if index is None else own.gather(1, best))
    return torch.cat(drawn)[:, 0]
