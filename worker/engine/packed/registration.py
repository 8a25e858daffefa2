"""transformers' attention modules attend on the arena while a packed forward pass runs."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig

from worker.engine.attention_masks import Foreign, UnknownAttention, Windowed, arena_mask
from worker.engine.model.loaded import LoadedModel
from worker.engine.model.positions import length_dependent
from worker.engine.packed import step
from worker.engine.packed.arena import LayerShape
from worker.engine.packed.attention import LayerAttention, branched, chunk, decode, together

_NAME = "actograph_arena"
#: the way of layers whose attention goes request by request, see `Step.ways`
ONE_BY_ONE = "one call for each request"
_shapes: WeakKeyDictionary[nn.Module, list[LayerShape]] = WeakKeyDictionary()
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
        "return_dict",
    }
)
#: layers without keys and values of their own tokens
_OTHER_LAYERS = ("linear_attention", "chunked_attention", "mamba", "conv", "recurrent")


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Windowed | Foreign | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of the current pack, as transformers calls it.

    Args:
        query: [1, query heads, tokens, width].
        attention_mask: of `attention_masks.arena_mask`; a model that has made one of its own is refused.
        sliding_window: the mask's own, if it is given.

    Returns:
        [1, tokens, query heads, value width], and no weights.

    Raises:
        UnknownAttention: an argument is not known.
    """
    unknown = [name for name, given in others.items() if given is not None and name not in _HARMLESS]
    if unknown or not isinstance(attention_mask, Windowed | Foreign | None):
        raise UnknownAttention(f"its attention takes {', '.join(unknown) or 'a mask of its own'}")
    if isinstance(attention_mask, Foreign):
        raise UnknownAttention(attention_mask.reason)
    window = None if attention_mask is None else attention_mask.window
    if sliding_window is not None and sliding_window != window:
        raise UnknownAttention(
            f"its attention is told a window of {sliding_window} tokens, and its mask has {window or 'none'}"
        )
    now = step.current()
    now.windows.add(window or 0)
    layer: Any = module.layer_idx
    keys, values = now.keys[layer], now.values[layer]
    if keys.shape[::2] != key.shape[1::2]:
        raise UnknownAttention("its cache holds something else than keys and values")
    step.show(layer, "query", query)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    kind = LayerAttention(scale, window, softcap, s_aux)
    packed, singles = query[0].transpose(0, 1), len(now.spans)
    if now.branches is not None:
        return branched(packed, (key[0], value[0]), (keys, values), now.branches, kind)[None], None
    if now.fused and (attended := together(packed, keys, values, now, kind)) is not None:
        now.ways.add(attended[0])
        return attended[1][None], None
    now.ways.add(ONE_BY_ONE)
    parts = []
    if singles:
        parts.append(decode(packed[:singles], keys, values, now.spans, kind))
    for c in now.chunks:
        end = c.begin + c.start + c.stop - c.first
        own = keys[:, c.begin : end], values[:, c.begin : end]
        parts.append(chunk(packed[c.first : c.stop], *own, c.start, kind))
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None


AttentionInterface.register(_NAME, attend)
AttentionMaskInterface.register(_NAME, arena_mask)


@contextmanager
def arena_attention(config: PreTrainedConfig) -> Iterator[None]:
    """Let a model's attention modules call `attend` for one forward pass, and no longer."""
    before = config._attn_implementation
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def refusal(model: LoadedModel) -> str | None:
    """Why a model's config rules out packed passes; None if it does not."""
    config = model.text_config
    if not getattr(model.hf, "_supports_attention_backend", False):
        return "its attention cannot be replaced"
    known = inspect.signature(type(model.hf).forward).parameters
    for name in ("position_ids", "logits_to_keep", "past_key_values"):
        if name not in known:
            return f"its forward takes no {name}"
    positions = length_dependent(config)
    if positions is not None:
        return f"its positions depend on the longest text of a batch ({positions})"
    others = [kind for kind in getattr(config, "layer_types", None) or () if kind in _OTHER_LAYERS]
    return f"it has layers of the kind {others[0]}" if others else None


def layer_shapes(model: LoadedModel) -> list[LayerShape]:
    """Keys and values of each layer, from one tiny forward pass of each model.

    Raises:
        UnknownAttention: a layer keeps no keys and values of its own.
    """
    hf: Any = model.hf
    if hf not in _shapes:
        _shapes[hf] = _layer_shapes(model)
    return _shapes[hf]


def _layer_shapes(model: LoadedModel) -> list[LayerShape]:
    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    with torch.inference_mode():
        output = model.hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=True)
    shapes = []
    for layer in getattr(getattr(output, "past_key_values", None), "layers", ()):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if (
            not isinstance(keys, Tensor)
            or not isinstance(values, Tensor)
            or keys.shape[:3] != values.shape[:3]
        ):
            raise UnknownAttention("a layer keeps something else than keys and values")
        shapes.append(LayerShape(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, keys.device))
    if len(shapes) != int(model.text_config.num_hidden_layers):
        raise UnknownAttention("a layer keeps no keys and values of its own")
    return shapes
