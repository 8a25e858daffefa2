"""Attention of packed steps against a plain float64 softmax over each row alone."""

import pytest
import torch
from torch import Tensor

from worker.engine.streaming.attention import (
    attend_with_total,
    chunk_attention,
    decode_attention,
    merge,
    shared_prefix_attention,
)

WIDTH, CAPACITY, SLOTS = 16, 40, 6
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}


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


DTYPES = [torch.float64, torch.float32, torch.bfloat16]
EXTRAS: list[dict[str, object]] = [
    {},
    {"window": 5},
    {"softcap": 2.0},
    {"window": 9, "softcap": 3.0},
    {"sinks": True},
    {"sinks": True, "window": 5, "softcap": 2.0},
]


def made(extras: dict[str, object], query_heads: int, dtype: torch.dtype) -> dict[str, object]:
    sinks = {"sinks": torch.linspace(-1, 2, query_heads).to(dtype)} if extras.get("sinks") else {}
    return {"scale": 0.3, **extras, **sinks}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("extras", EXTRAS)
def test_each_row_attends_to_its_own_slot(
    heads: tuple[int, int], extras: dict[str, object], dtype: torch.dtype
) -> None:
    slots, lengths = [3, 0, 5, 1], [1, 40, 7, 6]
    query, keys, values = tensors(*heads, rows=4, dtype=dtype)
    options = made(extras, heads[0], dtype)
    got = decode_attention(query, keys, values, slots, lengths, **options)  # type: ignore[arg-type]
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        close(
            got[row],
            reference(query[row], keys[slot, :, :length], values[slot, :, :length], **options),  # type: ignore[arg-type]
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 13), (12, 1), (12, 9), (3, 37)])
@pytest.mark.parametrize("extras", EXTRAS)
def test_each_token_of_a_chunk_sees_the_tokens_up_to_itself(
    heads: tuple[int, int], start: int, count: int, extras: dict[str, object], dtype: torch.dtype
) -> None:
    query, keys, values = tensors(*heads, rows=count, dtype=dtype)
    options = made(extras, heads[0], dtype)
    got = chunk_attention(query, keys[2], values[2], start, **options)  # type: ignore[arg-type]
    for token in range(count):
        end = start + token + 1
        close(got[token], reference(query[token], keys[2, :, :end], values[2, :, :end], **options))  # type: ignore[arg-type]


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
