"""Attention of packed steps: rows of different lengths, chunks of prompts, prefixes that rows share.

Pure functions of tensors. Keys and values lie in slots, [slots, key heads, capacity, width]; a query head
reads key head `query head // (query heads / key heads)`.

Softcap: scores become `softcap * tanh(score / softcap)` (Gemma 2, arXiv 2408.00118). Window: a token sees
itself and the `window - 1` tokens before it (Mistral, arXiv 2310.06825). Sinks: one logit per query head
that takes part in the softmax and has no value (gpt-oss). Parts of a softmax are merged by their
log-sum-exp (FlashAttention, arXiv 2205.14135; Hydragen, arXiv 2402.05099).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

_flash: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def decode_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Sequence[int],
    lengths: Sequence[int],
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of the newest token of each row over its own slot.

    Args:
        query: [rows, query heads, width].
        keys: [slots, key heads, capacity, width]; the new tokens' keys are written already.
        values: as `keys`.
        slots: slot of each row.
        lengths: tokens of each row, the new one included; at least 1.
        sinks: [query heads].

    Returns:
        [rows, query heads, width].
    """
    rows, query_heads, width = query.shape
    grouped = query.view(rows, keys.shape[1], query_heads // keys.shape[1], width)
    out = torch.empty_like(grouped)
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        first = max(0, length - window) if window else 0
        out[row] = _attend(
            grouped[row],
            keys[slot, :, first:length],
            values[slot, :, first:length],
            scale=scale,
            softcap=softcap,
            sinks=None if sinks is None else sinks.view(len(grouped[row]), -1),
        )
    return out.view(rows, query_heads, width)


def chunk_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    start: int,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of consecutive tokens of one slot over the slot's tokens up to each of them.

    Args:
        query: [tokens, query heads, width], of the tokens `start` to `start + tokens - 1`.
        keys: [key heads, capacity, width] of the slot; the new tokens' keys are written already.
        values: as `keys`.
        sinks: [query heads].

    Returns:
        [tokens, query heads, width].
    """
    tokens, query_heads, width = query.shape
    key_heads = keys.shape[0]
    end = start + tokens
    first = max(0, start - window + 1) if window else 0
    place = torch.arange(start, end, device=query.device)[:, None]
    seen = torch.arange(first, end, device=query.device)[None]
    mask = seen <= place
    if window:
        mask &= seen > place - window
    group = query_heads // key_heads
    # a query head is a token of its key head: [key heads, group * tokens, width]
    grouped = query.transpose(0, 1).reshape(key_heads, group * tokens, width)
    out = _attend(
        grouped,
        keys[:, first:end],
        values[:, first:end],
        scale=scale,
        mask=mask.repeat(group, 1),
        softcap=softcap,
        sinks=None if sinks is None else sinks.view(key_heads, group).repeat_interleave(tokens, 1),
    )
    return out.view(query_heads, tokens, width).transpose(0, 1)


def shared_prefix_attention(  # noqa: PLR0917
    query: Tensor,
    prefix_keys: Tensor,
    prefix_values: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Sequence[int],
    lengths: Sequence[int],
    *,
    scale: float,
) -> Tensor:
    """Attention of the newest token of each row over a prefix that all rows share and its own slot.

    Args:
        query: [rows, query heads, width].
        prefix_keys: [key heads, prefix, width]; the tokens before those in the slots.
        prefix_values: as `prefix_keys`.
        keys: [slots, key heads, capacity, width]; the new tokens' keys are written already.
        values: as `keys`.
        slots: slot of each row.
        lengths: tokens of each row in its slot, the new one included, the prefix not; at least 1.

    Returns:
        [rows, query heads, width].
    """
    rows, query_heads, width = query.shape
    key_heads = keys.shape[1]
    grouped = query.view(rows, key_heads, query_heads // key_heads, width)
    every = grouped.transpose(0, 1).reshape(key_heads, -1, width)
    head, head_total = attend_with_total(every, prefix_keys, prefix_values, scale=scale)
    head = head.view(key_heads, rows, -1, width).transpose(0, 1)
    head_total = head_total.view(key_heads, rows, -1).transpose(0, 1)
    out = torch.empty_like(grouped)
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        tail, tail_total = attend_with_total(
            grouped[row], keys[slot, :, :length], values[slot, :, :length], scale=scale
        )
        out[row] = merge(head[row], head_total[row], tail, tail_total)
    return out.view(rows, query_heads, width)


def merge(one: Tensor, one_total: Tensor, other: Tensor, other_total: Tensor) -> Tensor:
    """Attention over two sets of keys from the attention over each, weighted by their softmax totals.

    Args:
        one: [..., width].
        one_total: log-sum-exp of the scores behind `one`, [...].
        other: as `one`.
        other_total: as `one_total`.
    """
    share = torch.sigmoid(one_total - other_total)[..., None]
    return torch.lerp(other.to(share.dtype), one.to(share.dtype), share).to(one.dtype)


def attend_with_total(
    query: Tensor, keys: Tensor, values: Tensor, *, scale: float, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention and the log-sum-exp of its scores.

    Args:
        query: [heads, tokens, width].
        keys: [heads, keys, width].
        values: as `keys`.
        mask: bool [tokens, keys]; true where a token sees a key.

    Returns:
        Attention [heads, tokens, width] and log-sum-exp [heads, tokens], float32 or wider.
    """
    if query.device.type != "cpu":
        return _explicit(query, keys, values, scale=scale, mask=mask)
    added = (
        None if mask is None else torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
    )
    out, total = _flash(query[None], keys[None], values[None], attn_mask=added, scale=scale)
    return out[0], total[0]


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of [heads, tokens, width] over [heads, keys, width]; `sinks` [heads, tokens]."""
    if softcap is None and sinks is None:
        return scaled_dot_product_attention(query[None], keys[None], values[None], mask, scale=scale)[0]
    if softcap is None:
        out, total = attend_with_total(query, keys, values, scale=scale, mask=mask)
    else:
        out, total = _explicit(query, keys, values, scale=scale, mask=mask, softcap=softcap)
    if sinks is None:
        return out
    return (out * torch.sigmoid(total - sinks)[..., None]).to(out.dtype)


def _explicit(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`attend_with_total` by matrix products, with the softcap that no fused kernel of torch has."""
    scores = (query @ keys.transpose(-1, -2)).to(torch.promote_types(query.dtype, torch.float32)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    total = scores.logsumexp(-1)
    return torch.exp(scores - total[..., None]).to(values.dtype) @ values, total
