"""Attention over an arena: single tokens over their exact range, chunks of prompts with no dense mask.

On a GPU one call serves all requests of a pass: torch's FlashAttention over variable lengths, or else its
flex_attention, see `flex`. What torch has is found by its signature.

A chunk sees its request's earlier tokens without a mask and itself causally; the two softmaxes are merged by
their log-sum-exp (FlashAttention, arXiv 2205.14135). Windows (Mistral, arXiv 2310.06825), softcaps (Gemma 2,
arXiv 2408.00118) and sinks (gpt-oss: a logit per head without a value) go through small query blocks.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import _scaled_dot_product_flash_attention_for_cpu as _flash
from torch.nn.functional import scaled_dot_product_attention

from worker.engine.packed import flex
from worker.engine.packed.step import Branches, Lengths, Step

try:
    from torch.nn.attention import varlen as _varlen
except ImportError:  # an older torch
    _varlen = None  # type: ignore[assignment]
varlen_attn: Callable[..., Any] | None = getattr(_varlen, "varlen_attn", None)

#: width of a head, at most, of torch's attention over variable lengths
_MOST_WIDTH = 256
#: scores of one query block, at most
_BLOCK_SCORES = 1 << 22
#: numbers of a row's keys up to which one thread reads them sooner than several would share them
_SHARED_NUMBERS = 1 << 20


class LayerAttention(NamedTuple):
    """Attention of one layer."""

    scale: float
    window: int | None = None  # a token sees itself and the `window - 1` tokens before it
    softcap: float | None = None
    sinks: Tensor | None = None  # [query heads]


def together(
    query: Tensor, keys: Tensor, values: Tensor, step: Step, kind: LayerAttention
) -> tuple[str, Tensor] | None:
    """Attention of all tokens of a pass over their requests' own ranges, each causally, on a GPU.

    Args:
        query: [tokens, query heads, width].
        keys: [key heads, arena tokens, width]; the new tokens' keys are written already.
        values: as `keys`.

    Returns:
        The name of the call, and [tokens, query heads, value width]; None if torch has no such call.
    """
    if can_fuse(keys, values, kind):
        return "varlen_attn", fused(query, keys, values, step.lengths(keys.device), kind)
    if flex.takes(keys, values):
        return flex.NAME, flex.attend(query, keys, values, step, *kind)
    return None


@functools.cache
def _options(call: Callable[..., Any] | None) -> frozenset[str]:
    """Arguments that a call of torch has; none if torch has not the call."""
    return frozenset() if call is None else frozenset(inspect.signature(call).parameters)


def can_fuse(keys: Tensor, values: Tensor, kind: LayerAttention) -> bool:
    """Whether `fused` takes this: half precision on an NVIDIA GPU, from Ampere on, without a softcap.

    An arena has gaps between ranges, so torch must take the number of each range's keys; 2.11 does not.
    """
    width = keys.shape[-1]
    needed = {"seqused_k", "window_size"} | ({"return_aux"} if kind.sinks is not None else set())
    return (
        keys.is_cuda
        and kind.softcap is None
        and needed <= _options(varlen_attn)
        and torch.cuda.get_device_capability(keys.device) >= (8, 0)
        and keys.dtype in (torch.float16, torch.bfloat16)
        and width == values.shape[-1]
        and width <= _MOST_WIDTH
        and width % 8 == 0
    )


def fused(query: Tensor, keys: Tensor, values: Tensor, lengths: Lengths, kind: LayerAttention) -> Tensor:
    """Attention of all tokens of a pack over their requests' own ranges, each causally.

    Keys are never split among thread blocks, so a request's rows do not depend on the others
    (https://docs.pytorch.org/docs/stable/nn.attention.varlen.html).

    Args:
        query: [tokens, query heads, width].
        keys: [key heads, arena tokens, width]; the new tokens' keys are written already.
        values: as `keys`.
        kind: one without a softcap.

    Returns:
        [tokens, query heads, width].
    """
    assert varlen_attn is not None
    known = _options(varlen_attn)
    more: dict[str, Any] = {"enable_gqa": query.shape[1] != keys.shape[0], "num_splits": 1}
    more = {name: value for name, value in more.items() if name in known}
    if kind.sinks is not None:
        more["return_aux"] = _varlen.AuxRequest(lse=True)
    # the last query sees the last key. A lone one needs no mask, and without a mask FlashAttention reads the
    # keys once for all query heads that share them
    right = -1 if lengths.most_queries == 1 and kind.window is None else 0
    attended = varlen_attn(
        query,
        keys.transpose(0, 1),
        values.transpose(0, 1),
        lengths.queries,
        lengths.begins,
        lengths.most_queries,
        lengths.most_used,
        scale=kind.scale,
        window_size=(-1 if kind.window is None else kind.window - 1, right),
        seqused_k=lengths.used,
        **more,
    )
    if kind.sinks is None:
        assert isinstance(attended, Tensor)
        return attended
    out, total = attended
    return flex.with_sinks(out, total.transpose(0, 1), kind.sinks)


def decode(
    query: Tensor, keys: Tensor, values: Tensor, spans: Sequence[tuple[int, int]], kind: LayerAttention
) -> Tensor:
    """Attention of one token per request over the request's own range.

    Args:
        query: [rows, query heads, width].
        keys: [key heads, arena tokens, width]; the new tokens' keys are written already.
        values: as `keys`.
        spans: arena places of each row's tokens, the new one included.

    Returns:
        [rows, query heads, value width].
    """
    threads = torch.get_num_threads()
    longest = max(end - begin for begin, end in spans)
    alone = query.is_cpu and longest * keys.shape[0] * keys.shape[2] <= _SHARED_NUMBERS
    if not alone or threads == 1:
        return _decode(query, keys, values, spans, kind)
    torch.set_num_threads(1)  # for this thread alone; it takes less than a microsecond
    try:
        return _decode(query, keys, values, spans, kind)
    finally:
        torch.set_num_threads(threads)


def _decode(
    query: Tensor, keys: Tensor, values: Tensor, spans: Sequence[tuple[int, int]], kind: LayerAttention
) -> Tensor:
    rows, heads, width = query.shape
    flash = query.is_cpu and width == values.shape[-1]
    every_key, every_value = keys[None], values[None]
    out = []
    # a row at a time reads its own keys alone
    for own, (begin, end) in zip(query.view(rows, 1, keys.shape[0], -1, width).unbind(0), spans, strict=True):
        first = max(begin, end - kind.window) if kind.window else begin
        k, v = every_key.narrow(2, first, end - first), every_value.narrow(2, first, end - first)
        if kind.softcap is not None or (kind.sinks is not None and not flash):
            out.append((_weights(own[0] @ k[0].mT, kind).to(v.dtype) @ v[0])[None])
        elif flash:
            attended, total = _flash(own, k, v, scale=kind.scale)
            if kind.sinks is not None:
                attended = flex.with_sinks(attended, total, kind.sinks.view(total.shape))
            out.append(attended)
        else:
            out.append(scaled_dot_product_attention(own, k, v, scale=kind.scale))
    return torch.cat(out).view(rows, heads, -1)


def chunk(query: Tensor, keys: Tensor, values: Tensor, start: int, kind: LayerAttention) -> Tensor:
    """Causal attention of consecutive tokens of one request (lower right of [tokens, start + tokens]).

    Args:
        query: [tokens, query heads, width], of the tokens from number `start` on.
        keys: [key heads, start + tokens, width]: the request's keys, the new ones included.
        values: as `keys`.

    Returns:
        [tokens, query heads, value width].
    """
    tokens, heads, width = query.shape
    windowed = kind.window is not None and start + tokens > kind.window
    if windowed or kind.softcap is not None or not query.is_cpu or width != values.shape[-1]:
        return _blocked(query, keys, values, start, kind)
    key_heads = keys.shape[0]
    k, v = (x[:, start:].repeat_interleave(heads // key_heads, 0)[None] for x in (keys, values))
    q = query.transpose(0, 1)[None]
    out, total = _flash(q, k, v, is_causal=True, scale=kind.scale)
    if start:
        # the heads of a group are further tokens of their key head
        grouped = q.reshape(1, key_heads, -1, width)
        past, past_total = _flash(grouped, keys[None, :, :start], values[None, :, :start], scale=kind.scale)
        share = torch.sigmoid(past_total.reshape(total.shape) - total)[..., None].to(out.dtype)
        out = torch.lerp(out, past.reshape(out.shape), share)
        total = torch.logaddexp(total, past_total.reshape(total.shape))
    if kind.sinks is not None:
        out = flex.with_sinks(out, total, kind.sinks[:, None])
    attended: Tensor = out[0].transpose(0, 1)
    return attended


def branched(
    query: Tensor,
    own: tuple[Tensor, Tensor],
    shared: tuple[Tensor, Tensor],
    branches: Branches,
    kind: LayerAttention,
) -> Tensor:
    """Causal attention of branches over the tokens that they share, and each over its own.

    Args:
        query: [tokens, query heads, width].
        own: keys and values of the same tokens, [key heads, tokens, width].
        shared: of the arena, [key heads, arena tokens, width].

    Returns:
        [tokens, query heads, value width].
    """
    tokens, heads, width = query.shape
    key_heads, count = own[0].shape[0], len(branches.counts)
    padded, rows, hidden = branches.places(query.device, kind.window)
    past_keys, past_values = (x[:, branches.begin : branches.begin + branches.shared] for x in shared)
    # [key heads, group, tokens, width]
    grouped = query.view(tokens, key_heads, -1, width).permute(1, 2, 0, 3)
    past = grouped.flatten(1, 2) @ past_keys.mT
    # a rectangle for each branch: [key heads, group, branches, longest, width]
    own_keys, own_values = (x[:, padded].view(key_heads, 1, count, -1, x.shape[-1]) for x in own)
    late = grouped[:, :, padded].view(key_heads, heads // key_heads, count, -1, width) @ own_keys.mT
    late = late.flatten(2, 3)[:, :, rows]
    scores = torch.cat([past.view(*late.shape[:3], -1), late], -1)
    weights = _weights(scores, kind, hidden).to(own_values.dtype)
    of_past, of_own = weights[..., : branches.shared], weights[..., branches.shared :]
    longest = of_own.shape[-1]
    out = (of_past.flatten(1, 2) @ past_values).view(*of_past.shape[:3], -1)
    found = of_own[:, :, padded].view(*own_keys.shape[:1], -1, count, longest, longest) @ own_values
    return (out + found.flatten(2, 3)[:, :, rows]).permute(2, 0, 1, 3).reshape(tokens, heads, -1)


def _blocked(query: Tensor, keys: Tensor, values: Tensor, start: int, kind: LayerAttention) -> Tensor:
    """`chunk` in query blocks, whose scores and masks are small."""
    tokens, heads, width = query.shape
    key_heads, window = keys.shape[0], kind.window
    size = max(1, _BLOCK_SCORES // (heads * (start + tokens)))
    out = []
    for at in range(0, tokens, size):
        own = query[at : at + size]
        n, begin = len(own), start + at
        first = max(0, begin - window + 1) if window else 0
        k, v = keys[:, first : begin + n], values[:, first : begin + n]
        place = torch.arange(begin, begin + n, device=query.device)[:, None]
        seen = torch.arange(first, begin + n, device=query.device)
        hidden = (seen > place) | (seen <= place - window) if window else seen > place
        grouped = own.view(n, key_heads, -1, width).permute(1, 2, 0, 3)  # [key heads, group, tokens, width]
        scores = (grouped.flatten(1, 2) @ k.mT).view(key_heads, -1, n, len(seen))
        weights = _weights(scores, kind, hidden).to(v.dtype)
        part = weights.flatten(1, 2) @ v
        out.append(part.view(key_heads, -1, n, v.shape[-1]).permute(2, 0, 1, 3).reshape(n, heads, -1))
    return torch.cat(out)


def _weights(scores: Tensor, kind: LayerAttention, hidden: Tensor | None = None) -> Tensor:
    """Softmax of the scores [key heads, group, (tokens,) keys], in float32."""
    scores = scores.float() * kind.scale
    if kind.softcap is not None:
        scores = torch.tanh(scores / kind.softcap) * kind.softcap
    if hidden is not None:
        scores = scores.masked_fill_(hidden, -torch.inf)
    if kind.sinks is None:
        return scores.softmax(-1)
    sinks = kind.sinks.float().view(scores.shape[0], -1, *(1,) * (scores.ndim - 2))
    total = torch.logaddexp(scores.logsumexp(-1, keepdim=True), sinks)
    return torch.exp(scores - total)
