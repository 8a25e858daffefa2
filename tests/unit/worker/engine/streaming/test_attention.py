"""Attention of packed steps against a plain float64 softmax over each row alone."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from worker.engine.streaming.attention import (
    attend_with_total,
    chunk_attention,
    decode_attention,
    merge,
    shared_prefix_attention,
)

WIDTH, CAPACITY, SLOTS = 16, 40, 6
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def reference(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """One query [heads, width] at the end of keys [key heads, tokens, width], in float64, head by head."""
    out = []
    for head, vector in enumerate(query.double()):
        of = head // (len(query) // len(keys))
        first = max(0, keys.shape[1] - window) if window else 0
        scores = keys[of, first:].double() @ vector * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks is not None:
            scores = torch.cat([scores, sinks[head : head + 1].double()])
        weights = scores.softmax(0)[: keys.shape[1] - first]
        out.append(weights @ values[of, first:].double())
    return torch.stack(out)


def tensors(query_heads: int, key_heads: int, rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    query = torch.randn(rows, query_heads, WIDTH, generator=generator).to(dtype)
    keys, values = torch.randn(2, SLOTS, key_heads, CAPACITY, WIDTH, generator=generator).to(dtype)
    return query, keys, values


def close(got: Tensor, expected: Tensor) -> None:
    assert got.shape == expected.shape
    bound = TOLERANCE[got.dtype]
    torch.testing.assert_close(got.double(), expected, atol=bound, rtol=bound)


DTYPES = list(TOLERANCE)
EXTRAS: list[dict[str, Any]] = [
    {},
    {"window": 5},
    {"softcap": 2.0},
    {"window": 9, "softcap": 3.0},
    {"sinks": True},
    {"sinks": True, "window": 5, "softcap": 2.0},
]


def made(extras: dict[str, Any], query_heads: int, dtype: torch.dtype) -> dict[str, Any]:
    sinks = {"sinks": torch.linspace(-1, 2, query_heads).to(dtype)} if extras.get("sinks") else {}
    return {"scale": 0.3, **extras, **sinks}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("extras", EXTRAS)
def test_each_row_attends_to_its_own_slot(
    heads: tuple[int, int], extras: dict[str, Any], dtype: torch.dtype
) -> None:
    slots, lengths = [3, 0, 5, 1], [1, 40, 7, 6]
    query, keys, values = tensors(*heads, rows=4, dtype=dtype)
    options = made(extras, heads[0], dtype)
    got = decode_attention(query, keys, values, slots, lengths, **options)
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        close(
            got[row],
            reference(query[row], keys[slot, :, :length], values[slot, :, :length], **options),
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 13), (12, 1), (12, 9), (3, 37)])
@pytest.mark.parametrize("extras", EXTRAS)
def test_each_token_of_a_chunk_sees_the_tokens_up_to_itself(
    heads: tuple[int, int], start: int, count: int, extras: dict[str, Any], dtype: torch.dtype
) -> None:
    query, keys, values = tensors(*heads, rows=count, dtype=dtype)
    options = made(extras, heads[0], dtype)
    got = chunk_attention(query, keys[2], values[2], start, **options)
    for token in range(count):
        end = start + token + 1
        close(got[token], reference(query[token], keys[2, :, :end], values[2, :, :end], **options))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("prefix", [1, 11, 40])
def test_a_shared_prefix_counts_as_the_first_tokens_of_each_row(
    heads: tuple[int, int], prefix: int, dtype: torch.dtype
) -> None:
    slots, lengths = [3, 0, 5], [1, 40, 7]
    query, keys, values = tensors(*heads, rows=3, dtype=dtype)
    before = keys[4, :, :prefix], values[4, :, :prefix]
    got = shared_prefix_attention(query, *before, keys, values, slots, lengths, scale=0.3)
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        all_keys = torch.cat([before[0], keys[slot, :, :length]], 1)
        all_values = torch.cat([before[1], values[slot, :, :length]], 1)
        close(got[row], reference(query[row], all_keys, all_values, scale=0.3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_parts_of_the_keys_merge_to_the_whole(dtype: torch.dtype, softcap: float | None) -> None:
    query, keys, values = tensors(2, 2, rows=2, dtype=dtype)
    query = query.transpose(0, 1)[None]

    def attend(first: int, end: int) -> tuple[Tensor, Tensor]:
        part = keys[:1, :, first:end], values[:1, :, first:end]
        return attend_with_total(query, *part, scale=0.3, softcap=softcap)

    whole, total = attend(0, 40)
    merged, merged_total = merge(*attend(0, 9), *attend(9, 40))
    close(merged, whole.double())
    torch.testing.assert_close(merged_total, total, atol=1e-4, rtol=1e-5)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_batch_of_rows_is_each_row_alone(data: st.DataObject) -> None:
    query_heads, key_heads = data.draw(st.sampled_from([(4, 4), (4, 2), (6, 1)]))
    slots = data.draw(st.lists(st.integers(0, SLOTS - 1), unique=True, min_size=1))
    lengths = [data.draw(st.integers(1, CAPACITY)) for _ in slots]
    sinks = torch.linspace(-1, 2, query_heads) if data.draw(st.booleans()) else None
    options: dict[str, Any] = {
        "scale": data.draw(st.floats(0.01, 2)),
        "window": data.draw(st.none() | st.integers(1, CAPACITY + 5)),
        "softcap": data.draw(st.none() | st.floats(0.5, 50)),
        "sinks": sinks,
    }
    query, keys, values = tensors(query_heads, key_heads, rows=len(slots), dtype=torch.float32)
    together = decode_attention(query, keys, values, slots, lengths, **options)
    for i, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        alone = decode_attention(query[i : i + 1], keys, values, [slot], [length], **options)
        assert torch.equal(together[i], alone[0])  # to the bit: a row's numbers do not depend on its batch
        close(together[i], reference(query[i], keys[slot, :, :length], values[slot, :, :length], **options))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_chunks_of_a_prompt_are_one_chunk(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, CAPACITY))
    cuts = sorted(data.draw(st.sets(st.integers(1, CAPACITY - 1), max_size=3)) | {0, count})
    cuts = [cut for cut in cuts if cut <= count]
    options: dict[str, Any] = {
        "scale": 0.3,
        "window": data.draw(st.none() | st.integers(1, CAPACITY + 5)),
        "softcap": data.draw(st.none() | st.floats(0.5, 50)),
        "sinks": torch.linspace(-1, 2, 4) if data.draw(st.booleans()) else None,
    }
    query, keys, values = tensors(4, 2, rows=count, dtype=torch.float64)
    whole = chunk_attention(query, keys[1], values[1], 0, **options)
    parts = [
        chunk_attention(query[first:end], keys[1], values[1], first, **options)
        for first, end in pairwise(cuts)
    ]
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-12, rtol=1e-12)
    last = decode_attention(query[-1:], keys, values, [1], [count], **options)
    torch.testing.assert_close(whole[-1:], last, atol=1e-12, rtol=1e-12)


def test_tokens_that_nobody_sees_may_be_anything() -> None:
    """Slots hold old numbers beyond a row's length, and other rows' slots hold others'."""
    query, keys, values = tensors(4, 2, rows=2, dtype=torch.float32)
    wanted = decode_attention(query, keys, values, [0, 1], [5, 9], scale=0.3)
    chunk = chunk_attention(query, keys[0], values[0], 3, scale=0.3)
    for held in (keys, values):
        held[0, :, 5:] = torch.nan
        held[1, :, 9:] = torch.inf
        held[2:] = torch.nan
    assert torch.equal(decode_attention(query, keys, values, [0, 1], [5, 9], scale=0.3), wanted)
    assert torch.equal(chunk_attention(query, keys[0], values[0], 3, scale=0.3), chunk)


def test_values_may_be_narrower_than_keys() -> None:
    query, keys, values = tensors(4, 2, rows=3, dtype=torch.float64)
    options: dict[str, Any] = {"scale": 0.3, "sinks": torch.linspace(-1, 2, 4).double()}
    whole = decode_attention(query, keys, values, [0, 2, 1], [3, 40, 9], **options)
    narrow = decode_attention(query, keys, values[..., :5], [0, 2, 1], [3, 40, 9], **options)
    torch.testing.assert_close(narrow, whole[..., :5])
    whole = chunk_attention(query, keys[0], values[0], 7, **options)
    torch.testing.assert_close(
        chunk_attention(query, keys[0], values[0, ..., :5], 7, **options), whole[..., :5]
    )
