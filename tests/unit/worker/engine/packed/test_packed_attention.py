"""Attention over ranges and chunks equals one softmax over all tokens with a mask."""

from itertools import product

import pytest
import torch
from torch import Tensor

from worker.engine.packed import attention
from worker.engine.packed.attention import Kind


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
