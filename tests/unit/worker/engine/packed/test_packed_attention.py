"""Attention over ranges and chunks equals one softmax over all tokens with a mask."""

import importlib.util
import sys
from functools import wraps
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as flex_module

from tests.support.varlen import masked_softmax, varlen
from worker.engine.packed import attention, flex
from worker.engine.packed.attention import LayerAttention
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
            kind = LayerAttention(
                0.4, window, softcap, torch.randn(6, generator=generator) if sinks else None
            )
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


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both calls of a GPU: FlashAttention's stand-in, and flex_attention that is not compiled."""
    monkeypatch.setattr(attention, "varlen_attn", varlen)
    monkeypatch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(flex, "_compiled", lambda: flex_module.flex_attention)


def test_one_call_on_a_gpu_gets_every_range_of_a_pack(as_on_a_gpu: None, subtests: pytest.Subtests) -> None:
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(2, 700, 8, generator=generator) for _ in range(2))
    packs = {
        "single tokens": Step([keys], [values], [(40, 47), (3, 4), (256, 600)], []),
        # one from a prompt's start, one later on, one of a single token behind others, and a long one
        "chunks": Step(
            [keys],
            [values],
            [],
            [Chunk(0, 5, 10, 0), Chunk(5, 7, 20, 6), Chunk(7, 8, 30, 4), Chunk(8, 158, 200, 250)],
        ),
        "both": Step([keys], [values], [(40, 47), (3, 4)], [Chunk(2, 7, 10, 0), Chunk(7, 9, 20, 6)]),
    }
    sinks = torch.randn(6, generator=generator)
    kinds = [
        LayerAttention(0.4, window, softcap, sink)
        for window, softcap, sink in product((None, 3, 600), (None, 2.0), (None, sinks))
    ]
    for (name, step), kind in product(packs.items(), kinds):
        count = len(step.spans) + sum(c.stop - c.first for c in step.chunks)
        query = torch.randn(count, 6, 8, generator=generator)
        due = (
            [attention.decode(query[: len(step.spans)], keys, values, step.spans, kind)] if step.spans else []
        )
        for c in step.chunks:
            k, v = (x[:, c.begin : c.begin + c.start + c.stop - c.first] for x in (keys, values))
            due.append(attention.chunk(query[c.first : c.stop], k, v, c.start, kind))
        of = {"pack": name, "window": kind.window, "softcap": kind.softcap, "sinks": kind.sinks is not None}
        with subtests.test("flex_attention", **of):
            got = flex.attend(query, keys, values, step, *kind)
            torch.testing.assert_close(got, torch.cat(due), atol=1e-5, rtol=1e-5)
        if kind.softcap is None:
            with subtests.test("varlen_attn", **of):
                lengths = step.lengths(keys.device)
                got = attention.fused(query, keys, values, lengths, kind)
                torch.testing.assert_close(got, torch.cat(due), atol=1e-5, rtol=1e-5)


def test_lone_queries_have_no_mask_so_that_flash_attention_packs_their_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    windows = []

    @wraps(varlen)
    def seen(*args: Any, **options: Any) -> Any:
        windows.append(options["window_size"])
        return varlen(*args, **options)

    monkeypatch.setattr(attention, "varlen_attn", seen)
    keys = torch.randn(2, 60, 8)
    singles = Step([keys], [keys], [(40, 47), (3, 4)], [])
    chunks = Step([keys], [keys], [(40, 47)], [Chunk(1, 4, 3, 0)])
    for step, window in product((singles, chunks), (None, 6)):
        lengths = step.lengths(keys.device)
        attention.fused(
            torch.randn(lengths.queries[-1], 6, 8), keys, keys, lengths, LayerAttention(0.4, window)
        )
    assert windows == [(-1, -1), (5, 0), (-1, 0), (5, 0)]


def test_the_call_is_the_one_that_torch_has(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))

    class OnGpu(torch.Tensor):
        is_cuda = True

    def keys(dtype: torch.dtype, width: int) -> torch.Tensor:
        return torch.zeros(2, 4, width, dtype=dtype).as_subclass(OnGpu)

    def older(query: Any, key: Any, value: Any, *, window_size: Any, return_aux: Any) -> Any:
        """As torch 2.11 has it: without the number of a range's keys."""

    half, plain, capped = torch.bfloat16, LayerAttention(1.0), LayerAttention(1.0, softcap=30.0)
    sinks = LayerAttention(1.0, sinks=torch.zeros(2))
    cases: list[tuple[str, Any, bool, torch.dtype, int, LayerAttention, str | None]] = [
        ("half precision", varlen, True, half, 64, plain, "varlen_attn"),
        ("sinks", varlen, True, half, 64, sinks, "varlen_attn"),
        ("softcap", varlen, True, half, 64, capped, "flex_attention"),
        ("float32", varlen, True, torch.float32, 64, plain, "flex_attention"),
        ("wide heads", varlen, True, half, 512, plain, "flex_attention"),
        ("an older torch", older, True, half, 64, plain, "flex_attention"),
        ("a torch without it", None, True, half, 64, plain, "flex_attention"),
        ("without Triton", varlen, False, half, 64, capped, None),
        ("narrow heads", varlen, True, torch.float32, 8, plain, None),
    ]
    for name, function, triton, dtype, width, kind, due in cases:
        with subtests.test(name), monkeypatch.context() as patch:
            patch.setattr(attention, "varlen_attn", function)
            patch.setattr(flex, "available", lambda found=triton: found)
            patch.setattr(attention, "fused", lambda *_: torch.zeros(1))
            patch.setattr(flex, "attend", lambda *_: torch.zeros(1))
            held, step = keys(dtype, width), Step([], [], [(0, 1)], [])
            step.known_lengths[held.device] = step.lengths(torch.device("cpu"))
            made = attention.together(torch.zeros(1, 2, width), held, held, step, kind)
            assert (None if made is None else made[0]) == due


def test_a_torch_without_attention_over_variable_lengths_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.nn.attention, "varlen", raising=False)
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    spec = importlib.util.spec_from_file_location("attention_of_an_older_torch", attention.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.varlen_attn is None
