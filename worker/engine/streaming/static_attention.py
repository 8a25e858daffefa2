"""Decode attention that a CUDA graph can hold: no number of a step is known to the host.

Which slots the rows use and how long they are lies in tensors on the device, so that a captured graph runs
for every step of its bucket: its number of rows and the longest length, rounded up.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def static_decode_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    lengths: Tensor,
    *,
    longest: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """`decode_attention` with static shapes and without a number that the host has to know.

    Args:
        query: [rows, query heads, width].
        keys: [slots, key heads, capacity, width]; the new tokens' keys are written already.
        values: as `keys`, [slots, key heads, capacity, value width].
        slots: int64 [rows] on the device.
        lengths: int64 [rows] on the device, the new token included; from 1 to `longest`. Padding rows have
            any slot and length 1.
        longest: bound of the lengths, part of the graph's bucket.
        sinks: [query heads].

    Returns:
        [rows, query heads, value width].
    """
    rows, query_heads, width = query.shape
    key_heads = keys.shape[1]
    by_head = query.view(rows, key_heads, -1, width)
    own_keys, own_values = (held[:, :, :longest].index_select(0, slots) for held in (keys, values))
    place = torch.arange(longest, device=query.device)
    seen = place < lengths[:, None]
    if window:
        seen &= place >= lengths[:, None] - window
    mask = seen[:, None, None]
    if softcap is None and sinks is None:
        out = scaled_dot_product_attention(by_head, own_keys, own_values, mask, scale=scale)
        return out.reshape(rows, query_heads, -1)
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (by_head @ own_keys.transpose(-1, -2)).to(wide) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = torch.where(mask, scores, -torch.inf)
    if sinks is not None:
        sink = sinks.to(wide).view(1, key_heads, -1, 1).expand(rows, -1, -1, -1)
        scores = torch.cat([scores, sink], -1)
    weights = scores.softmax(-1)[..., :longest].to(values.dtype)
    return (weights @ own_values).reshape(rows, query_heads, -1)


def write_token(held: Tensor, new: Tensor, slots: Tensor, lengths: Tensor) -> None:
    """Write the newest token's keys or values to its row's slot, in place.

    Args:
        held: [slots, heads, capacity, width].
        new: [rows, heads, width].
        slots: int64 [rows]; rows that pad a bucket share a slot that no request uses.
        lengths: int64 [rows], the new token included.
    """
    held[slots, :, lengths - 1] = new
