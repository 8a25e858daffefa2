"""Attention of all tokens of a pass in one or two calls of torch's flex_attention.

It takes what FlashAttention does not: softcaps, float32, other widths of heads. It is compiled, which needs
Triton (https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html); eager flex_attention computes
the scores of every token with the whole arena, and is not used.

Token i sees the arena places `first[i]` to `last[i]`. Single tokens are a batch, each with the blocks of its
own range; chunks of prompts are one sequence, whose blocks of tokens visit the blocks that any of them sees.
A block's hidden values are multiplied by zero, so ranges must begin at a block, and hold no number that is
none, see `Arena`.
"""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from worker.engine.model.host_memory import to_device
from worker.engine.packed.step import Step

NAME = "flex_attention"
#: places of the arena, and tokens of chunks, of one block
BLOCK = 128
#: kernels that are kept of different shapes and models
_MOST_KERNELS = 64
#: narrowest heads that the kernel takes
_LEAST_WIDTH = 16


class Masks(NamedTuple):
    """Masks of a pass: of its single tokens, and of its chunks."""

    singles: BlockMask | None
    chunks: BlockMask | None


@functools.cache
def available() -> bool:
    """Whether flex_attention can be compiled for a GPU."""
    return importlib.util.find_spec("triton") is not None


def takes(keys: Tensor, values: Tensor) -> bool:
    """Whether `attend` takes these keys and values."""
    return keys.is_cuda and min(keys.shape[-1], values.shape[-1]) >= _LEAST_WIDTH and available()


@functools.cache
def _compiled() -> Callable[..., Any]:
    settings: Any = torch._dynamo.config
    settings.recompile_limit = max(settings.recompile_limit, _MOST_KERNELS)
    settings.specialize_float = True  # a softcap is part of a kernel
    made: Callable[..., Any] = torch.compile(flex_attention, fullgraph=True)
    return made


def attend(  # noqa: PLR0917 (the last four are a kind of attention)
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    step: Step,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of all tokens of a pass over their requests' own ranges, each causally.

    Args:
        query: [tokens, query heads, width].
        keys: [key heads, arena tokens, width]; the new tokens' keys are written already.
        values: as `keys`.
        sinks: a logit per query head that has no value.

    Returns:
        [tokens, query heads, value width].
    """
    masks = masks_of(step, keys.device, window, keys.shape[1])
    score = None if softcap is None else _capped(softcap)
    singles = len(query) - sum(c.stop - c.first for c in step.chunks)
    parts = []
    for mask, some in ((masks.singles, query[:singles]), (masks.chunks, query[singles:])):
        if mask is None:
            continue
        alone = mask is masks.singles
        rows = some[:, :, None] if alone else some.transpose(0, 1)[None]
        more = {} if sinks is None else {"return_aux": AuxRequest(lse=True)}
        out = _compiled()(
            rows, keys[None], values[None], score, mask, scale, query.shape[1] != len(keys), **more
        )
        if sinks is not None:
            out, aux = out
            out = with_sinks(out, aux.lse, sinks[:, None])
        parts.append(out[:, :, 0] if alone else out[0].transpose(0, 1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def with_sinks(out: Tensor, total: Tensor, sinks: Tensor) -> Tensor:
    """Attention [..., width] with one more logit, without a value, in each softmax.

    Args:
        total: log-sum-exp of the other logits, float32 [...].
        sinks: that logit, broadcast to [...].
    """
    return out * torch.sigmoid(total - sinks.float())[..., None].to(out.dtype)


def masks_of(step: Step, device: torch.device, window: int | None, places: int) -> Masks:
    """Masks of a pass, made at the first layer that needs them.

    Args:
        places: of the arena.
    """
    key = (device, window)
    if key not in step.known_masks:
        singles = len(step.lengths(device).used) - len(step.chunks)
        step.known_masks[key] = Masks(
            _of_singles(step, device, window, places, singles) if singles else None,
            _of_chunks(step, device, window, places) if step.chunks else None,
        )
    masks: Masks = step.known_masks[key]
    return masks


def _of_singles(step: Step, device: torch.device, window: int | None, places: int, count: int) -> BlockMask:
    """Computed on the device, so that a CUDA graph can replay it."""
    lengths, blocks = step.lengths(device), -(-places // BLOCK)
    begins = lengths.begins[:count]
    last = begins + lengths.used[:count] - 1
    first = begins if window is None else torch.maximum(begins, last - (window - 1))
    block = torch.div(first, BLOCK, rounding_mode="floor")
    visited = torch.div(last, BLOCK, rounding_mode="floor") - block + 1
    index = block[:, None] + torch.arange(blocks, dtype=torch.int32, device=device)

    def seen(row: Tensor, _head: Tensor, _token: Tensor, place: Tensor) -> Tensor:
        return (place >= first[row]) & (place <= last[row])

    shape = count, 1, 1
    return _mask((1, places), visited.view(shape), index.clamp_(max=blocks - 1).view(*shape, blocks), seen)


def _of_chunks(step: Step, device: torch.device, window: int | None, places: int) -> BlockMask:
    begin, last = (
        np.concatenate([np.asarray(one) for one in column])
        for column in zip(
            *(
                (np.full(c.stop - c.first, c.begin), c.begin + c.start + np.arange(c.stop - c.first))
                for c in step.chunks
            ),
            strict=True,
        )
    )
    first = begin if window is None else np.maximum(begin, last - (window - 1))
    blocks, rows = -(-places // BLOCK), -(-len(first) // BLOCK)
    visited, index = np.zeros(rows, np.int32), np.zeros((rows, blocks), np.int32)
    for row in range(rows):
        some = slice(row * BLOCK, (row + 1) * BLOCK)
        spans = {(a // BLOCK, b // BLOCK) for a, b in zip(first[some], last[some], strict=True)}
        found = sorted({block for a, b in spans for block in range(a, b + 1)})
        visited[row] = len(found)
        index[row, : len(found)] = found
    flat = [np.asarray(one, np.int32).ravel() for one in (first, last, visited, index)]
    numbers = to_device(np.concatenate(flat), device)
    lo, hi, counts, indices = torch.split(numbers, [len(one) for one in flat])

    def seen(_row: Tensor, _head: Tensor, token: Tensor, place: Tensor) -> Tensor:
        return (place >= lo[token]) & (place <= hi[token])

    shape = 1, 1, rows
    return _mask((len(first), places), counts.view(shape), indices.view(*shape, blocks), seen)


def _mask(lengths: tuple[int, int], visited: Tensor, index: Tensor, seen: Callable[..., Tensor]) -> BlockMask:
    # blocks that are seen as a whole: none; torch's kernels do not all take their absence
    none, nowhere = torch.zeros_like(visited), torch.zeros_like(index)
    return BlockMask(lengths, visited, index, none, nowhere, None, None, None, None, (BLOCK, BLOCK), seen)


def _capped(softcap: float) -> Callable[..., Tensor]:
    def capped(score: Tensor, *_: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped
