"""Attention over ranges and chunks equals one softmax over all tokens with a mask."""

from itertools import product

import pytest
import torch
from torch import Tensor

from worker.engine.packed import attention
from worker.engine.packed.attention import Kind
from worker.engine.packed.step import Chunk, Step


def _expected(query: Tensor, keys: Tensor, values: Tensor, kind: Kind) -> Tensor:
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


def test_chunks_and_single_tokens_equal_one_masked_softmax(
    subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    cases = product((None, 5, 64), (None, 2.0), (False, True), (8, 6), (1 << 22, 200))
    for window, softcap, sinks, value_width, block_scores in cases:
        with subtests.test(
            window=window, softcap=softcap, sinks=sinks, width=value_width, block=block_scores
        ):
            monkeypatch.setattr(attention, "_BLOCK_SCORES", block_scores)
            kind = Kind(0.4, window, softcap, torch.randn(6, generator=generator) if sinks else None)
            query = torch.randn(37, 6, 8, generator=generator)
            keys = torch.randn(2, 40, 8, generator=generator)  # three tokens of another request lie before
            values = torch.randn(2, 40, value_width, generator=generator)
            due = _expected(query, keys[:, 3:], values[:, 3:], kind)
            for start, stop in ((0, 37), (0, 9), (9, 37), (36, 37)):
                own = keys[:, 3 : 3 + stop], values[:, 3 : 3 + stop]
                got = attention.chunk(query[start:stop], *own, start, kind)
                torch.testing.assert_close(got, due[start:stop], atol=1e-5, rtol=1e-5)
            spans = [(3, 3 + n) for n in (1, 4, 5, 6, 37)]
            rows = torch.stack([query[end - 4] for _, end in spans])
            got = attention.decode(rows, keys, values, spans, kind)
            torch.testing.assert_close(
                got, torch.stack([due[end - 4] for _, end in spans]), atol=1e-5, rtol=1e-5
            )


def _varlen(  # noqa: PLR0917 (as torch has it)
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
) -> Tensor:
    """torch's attention over variable lengths as its documentation has it; torch has it on a GPU alone."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == seqused_k.dtype == torch.int32
    assert len(cu_seq_q) == len(cu_seq_k) == len(seqused_k) + 1
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert window_size[1] == 0  # the last query sees the last key, and no query what comes after
    assert num_splits == 1
    out = torch.full_like(query, torch.nan)
    for i, used in enumerate(seqused_k.tolist()):
        first, stop, begin = int(cu_seq_q[i]), int(cu_seq_q[i + 1]), int(cu_seq_k[i])
        assert 0 < stop - first <= max_q
        assert used <= max_k
        own = [x[begin : begin + used].transpose(0, 1) for x in (key, value)]
        padded = torch.zeros(used, *query.shape[1:])
        padded[used - (stop - first) :] = query[first:stop]
        kind = Kind(scale, None if window_size[0] < 0 else window_size[0] + 1)
        out[first:stop] = _expected(padded, own[0], own[1], kind)[used - (stop - first) :]
    return out


def test_one_call_on_a_gpu_gets_every_range_of_a_pack(
    subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "varlen_attn", _varlen)
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(2, 60, 8, generator=generator) for _ in range(2))
    spans = [(40, 47), (3, 4)]
    # chunks: one from a prompt's start, one later on, one of a single token behind others
    chunks = [Chunk(2, 7, 10, 0), Chunk(7, 9, 20, 6), Chunk(9, 10, 30, 4)]
    query = torch.randn(10, 6, 8, generator=generator)
    lengths = Step([keys], [values], spans, chunks).lengths(keys.device)
    for window in (None, 3):
        with subtests.test(window=window):
            kind = Kind(0.4, window)
            due = [attention.decode(query[:2], keys, values, spans, kind)]
            for c in chunks:
                k, v = (x[:, c.begin : c.begin + c.start + c.stop - c.first] for x in (keys, values))
                due.append(attention.chunk(query[c.first : c.stop], k, v, c.start, kind))
            got = attention.fused(query, keys, values, lengths, kind)
            torch.testing.assert_close(got, torch.cat(due), atol=1e-5, rtol=1e-5)
