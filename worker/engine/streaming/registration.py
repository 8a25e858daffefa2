"""transformers' attention modules run on slots while a streaming forward pass runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from worker.engine.model.loaded import LoadedModel
from worker.engine.streaming import step
from worker.engine.streaming.attention import chunk_attention, decode_attention, shared_prefix_attention

_NAME = "actograph_slots"
#: arguments of attention modules that change nothing here
_HARMLESS = frozenset(
    {
        "position_ids",
        "use_cache",
        "cache_position",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "is_causal",
    }
)


class UnknownAttention(Exception):
    """A model asks its attention for something that slots do not have."""


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of the current step, as transformers calls it.

    Args:
        query: [1, query heads, tokens, width].

    Returns:
        [1, tokens, query heads, width], and no weights.

    Raises:
        UnknownAttention: an argument is not known.
    """
    unknown = [name for name, given in others.items() if given is not None and name not in _HARMLESS]
    if unknown or attention_mask is not None:
        raise UnknownAttention(f"its attention takes {', '.join(unknown) or 'a mask'}")
    plan = step.current()
    layer: Any = module.layer_idx
    keys, values = plan.keys[layer], plan.values[layer]
    if keys.shape[1] != key.shape[1] or keys.shape[3] != key.shape[3]:
        raise UnknownAttention("its cache holds something else than keys and values")
    options: dict[str, Any] = {
        "scale": query.shape[-1] ** -0.5 if scaling is None else scaling,
        "window": sliding_window,
        "softcap": softcap,
        "sinks": s_aux,
    }
    packed = query[0].transpose(0, 1)
    out = query.new_empty(packed.shape[0], packed.shape[1], value.shape[-1])
    rows = len(plan.slots)
    if rows:
        out[:rows] = _decode(packed[:rows], keys, values, plan, **options)
    for chunk in plan.chunks:
        own = packed[chunk.first : chunk.stop]
        out[chunk.first : chunk.stop] = chunk_attention(
            own, keys[chunk.slot], values[chunk.slot], chunk.start, **options
        )
    return out[None], None


def _decode(query: Tensor, keys: Tensor, values: Tensor, plan: step.Step, **options: Any) -> Tensor:
    """Attention of the decode rows: prefixes that rows share are read once for all of them."""
    scale = options["scale"]
    plain = all(options[name] is None for name in ("window", "softcap", "sinks"))
    if not plan.prefixes or not plain:
        return decode_attention(query, keys, values, plan.slots, plan.lengths, **options)
    out = query.new_empty(query.shape[0], query.shape[1], values.shape[-1])
    alone = set(range(len(plan.slots)))
    for shared in plan.prefixes:
        alone.difference_update(shared.rows)
        first = shared.tokens
        out[shared.row_index] = shared_prefix_attention(
            query[shared.row_index],
            keys[shared.slot, :, :first],
            values[shared.slot, :, :first],
            keys[:, :, first:],
            values[:, :, first:],
            [plan.slots[row] for row in shared.rows],
            [plan.lengths[row] - first for row in shared.rows],
            scale=scale,
        )
    for row in alone:
        place = slice(row, row + 1)
        slots, lengths = plan.slots[place], plan.lengths[place]
        out[place] = decode_attention(query[place], keys, values, slots, lengths, **options)
    return out


AttentionInterface.register(_NAME, attend)
AttentionMaskInterface.register(_NAME, lambda *_, **__: None)


@contextmanager
def slots_attention(model: LoadedModel) -> Iterator[None]:
    """Let the model's attention modules call `attend`."""
    config = model.text_config
    before = config._attn_implementation
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = before
