"""Attention over ranges and chunks equals one softmax over all tokens with a mask."""

from itertools import product

import pytest
import torch

from tests.support.varlen import masked_softmax, varlen
from worker.engine.packed import attention
from worker.engine.packed.attention import Kind
from worker.engine.packed.step import Chunk, Step


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
            due = masked_softmax(query, keys[:, 3:], values[:, 3:], kind)
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


def test_one_call_on_a_gpu_gets_every_range_of_a_pack(
    subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "varlen_attn", varlen)
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
