"""torch's attention over variable lengths as its documentation has it; torch has it on a GPU alone."""

from typing import Any

import torch
from torch import Tensor

from worker.engine.packed.attention import LayerAttention


def masked_softmax(query: Tensor, keys: Tensor, values: Tensor, kind: LayerAttention) -> Tensor:
    """[tokens, heads, width]: every token sees itself and the tokens before it."""
    tokens, heads, _ = query.shape
    group = heads // keys.shape[0]
    k, v = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    scores = torch.einsum("thd,hsd->hts", query, k) * kind.scale
    if kind.softcap is not None:
        scores = kind.softcap * torch.tanh(scores / kind.softcap)
    place = torch.arange(tokens)
    hidden = place[None] > place[:, None]
    if kind.window is not None:
        hidden |= place[None] <= place[:, None] - kind.window
    scores = scores.masked_fill(hidden, -torch.inf)
    if kind.sinks is not None:
        scores = torch.cat([scores, kind.sinks[:, None, None].expand(-1, tokens, 1)], -1)
    return torch.einsum("hts,hsd->thd", scores.softmax(-1)[..., :tokens], v)


def varlen(  # noqa: PLR0917 (as torch has it)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    num_splits: int,
    return_aux: Any = None,
) -> Any:
    """torch's attention over variable lengths as its documentation has it; torch has it on a GPU alone."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == seqused_k.dtype == torch.int32
    assert len(cu_seq_q) == len(cu_seq_k) == len(seqused_k) + 1
    assert enable_gqa == (query.shape[1] != key.shape[1])
    # the last query sees the last key, and no query what comes after; a lone one needs no mask
    assert window_size[1] == 0 or (window_size == (-1, -1) and max_q == 1)
    assert num_splits == 1
    out = torch.full_like(query, torch.nan)
    total = torch.full(query.shape[1::-1], torch.nan)  # [heads, tokens]
    for i, used in enumerate(seqused_k.tolist()):
        first, stop, begin = int(cu_seq_q[i]), int(cu_seq_q[i + 1]), int(cu_seq_k[i])
        assert 0 < stop - first <= max_q
        assert used <= max_k
        own = [x[begin : begin + used].transpose(0, 1) for x in (key, value)]
        padded = torch.zeros(used, *query.shape[1:])
        padded[used - (stop - first) :] = query[first:stop]
        kind = LayerAttention(scale, None if window_size[0] < 0 else window_size[0] + 1)
        out[first:stop] = masked_softmax(padded, own[0], own[1], kind)[used - (stop - first) :]
        # with one more logit of 0, the rest is left as much as its sum says: 1 / (1 + exp(-total))
        ones = torch.ones_like(own[1])
        zero = torch.zeros(query.shape[1])
        left = masked_softmax(padded, own[0], ones, kind._replace(sinks=zero))[used - (stop - first) :, :, 0]
        total[:, first:stop] = torch.logit(left.double()).float().T
    return out if return_aux is None else (out, total)
