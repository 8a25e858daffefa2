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
    key_heads = keys.shape[1]
    by_head = query.view(rows, key_heads, -1, width)
    head_sinks = None if sinks is None else sinks.view(key_heads, -1)
    out = []
    # a row at a time reads its own keys alone; one call for all rows reads up to the longest row's
    for row, slot, length in zip(by_head[:, None], slots, lengths, strict=True):
        first = max(0, length - window) if window else 0
        own = keys[slot : slot + 1, :, first:length], values[slot : slot + 1, :, first:length]
        out.append(_attend(row, *own, scale=scale, softcap=softcap, sinks=head_sinks))
    return torch.cat(out).view(rows, query_heads, -1)


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
    key_heads, end = keys.shape[0], start + tokens
    first = max(0, start - window + 1) if window else 0
    place = torch.arange(start, end, device=query.device)[:, None]
    seen = torch.arange(first, end, device=query.device)[None]
    mask = seen <= place
    if window:
        mask &= seen > place - window
    # the heads of a group are tokens of their key head
    by_head = query.transpose(0, 1).reshape(1, key_heads, -1, width)
    out = _attend(
        by_head,
        keys[None, :, first:end],
        values[None, :, first:end],
        scale=scale,
        mask=mask.repeat(query_heads // key_heads, 1),
        softcap=softcap,
        sinks=None if sinks is None else sinks.view(key_heads, -1).repeat_interleave(tokens, 1),
    )
    return out.reshape(query_heads, tokens, -1).transpose(0, 1)


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
    by_head = query.view(rows, key_heads, -1, width)
    tails = [
        attend_with_total(
            row, keys[slot : slot + 1, :, :length], values[slot : slot + 1, :, :length], scale=scale
        )
        for row, slot, length in zip(by_head[:, None], slots, lengths, strict=True)
    ]
    # the prefix sees one token of each row as if they were tokens of one row
    together = by_head.transpose(0, 1).reshape(1, key_heads, -1, width)
    prefix, prefix_total = attend_with_total(together, prefix_keys[None], prefix_values[None], scale=scale)
    out, _ = merge(
        prefix.view(key_heads, rows, -1, prefix.shape[-1]).transpose(0, 1),
        prefix_total.view(key_heads, rows, -1).transpose(0, 1),
        torch.cat([tail for tail, _ in tails]),
        torch.cat([total for _, total in tails]),
    )
    return out.reshape(rows, query_heads, -1)


def merge(one: Tensor, one_total: Tensor, other: Tensor, other_total: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys from the attention over each, weighted by their softmax totals.

    Args:
        one: [..., width].
        one_total: log-sum-exp of the scores behind `one`, [...].
        other: as `one`.
        other_total: as `one_total`.

    Returns:
        Attention over both sets and its log-sum-exp.
    """
    share = torch.sigmoid(one_total - other_total)[..., None]
    out = torch.lerp(other.to(share.dtype), one.to(share.dtype), share)
    return out.to(one.dtype), torch.logaddexp(one_total, other_total)


def attend_with_total(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention and the log-sum-exp of its scores.

    Args:
        query: [batch, heads, tokens, width].
        keys: [batch, heads, keys, width].
        values: [batch, heads, keys, value width].
        mask: bool [tokens, keys]; true where a token sees a key.

    Returns:
        Attention [batch, heads, tokens, value width] and log-sum-exp [batch, heads, tokens], the latter in
        float32 or wider.
    """
    if query.device.type == "cpu" and softcap is None and query.shape[-1] == values.shape[-1]:
        # what scaled_dot_product_attention calls on a CPU; only the op itself returns the log-sum-exp
        added = None if mask is None else query.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)
        out, total = _flash(query, keys, values, attn_mask=added, scale=scale)
        return out, total
    scores = (query @ keys.transpose(-1, -2)).to(torch.promote_types(query.dtype, torch.float32)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    total = scores.logsumexp(-1)
    return torch.exp(scores - total[..., None]).to(values.dtype) @ values, total


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
    """`attend_with_total` without the total, and with sinks: [heads, tokens]."""
    if softcap is None and sinks is None:
        return scaled_dot_product_attention(query, keys, values, mask, scale=scale)
    out, total = attend_with_total(query, keys, values, scale=scale, mask=mask, softcap=softcap)
    return out if sinks is None else _with_sinks(out, total, sinks)


def _with_sinks(out: Tensor, total: Tensor, sinks: Tensor) -> Tensor:
    """Attention whose softmax counts a sink too, which has no value."""
    return (out * torch.sigmoid(total - sinks)[..., None]).to(out.dtype)
