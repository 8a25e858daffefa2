"""Calls of transformers' attention function, outside of packed passes: their queries, keys and values.

A model's attention modules find that function by the name in their config. For as long as a forward pass is
watched, the name is another one, whose function calls the first.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from worker.engine.attention_masks import Foreign, Windowed, arena_mask
from worker.engine.locations import ATTENDED, Side
from worker.engine.model.loaded import LoadedModel

_NAME = "actograph_watched"
EAGER = "eager"


class AttentionCall(NamedTuple):
    """One call of the attention function.

    Attributes:
        query: [batch, heads, tokens, width].
        key: [batch, key heads, earlier tokens + tokens, width].
        value: as `key`.
        mask: as the model gives it.
        kind: of the mask; None for a causal one.
        options: further arguments.
        attended: [batch, tokens, heads, value width].
        weights: [batch, heads, tokens, keys], if the function returns them.
        again: calls the same function with other tensors.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Any
    kind: Windowed | Foreign | None
    options: Mapping[str, Any]
    attended: Tensor
    weights: Tensor | None
    again: Callable[..., tuple[Tensor, Tensor | None]]


@dataclass
class _Watch:
    """Callbacks and masks of a watched forward pass.

    Attributes:
        name: of the attention function that is called.
        masks: by id, with the mask itself, so that no other one gets its id.
    """

    name: str
    before: Callable[[nn.Module, Side, Tensor], None] | None
    after: Callable[[AttentionCall], None] | None
    masks: dict[int, tuple[Any, Windowed | Foreign | None]] = field(default_factory=dict)


_watching: ContextVar[_Watch] = ContextVar("watched attention")


def is_seen(model: LoadedModel) -> bool:
    """Whether a model calls transformers' attention function, and not its own alone."""
    return hasattr(sys.modules[type(model.hf).__module__], "ALL_ATTENTION_FUNCTIONS")


@contextmanager
def watched(
    model: LoadedModel,
    *,
    before: Callable[[nn.Module, Side, Tensor], None] | None = None,
    after: Callable[[AttentionCall], None] | None = None,
    eager: bool = False,
) -> Iterator[None]:
    """Watch the attention function of each layer; without effect if the model does not call it.

    Args:
        before: called with the attention module, a side and its tensor [batch, tokens, heads, width], of the
            tokens of the pass: a view, so that writing reaches the model.
        after: called with the call.
        eager: call the function that returns weights, whatever the model's own is.
    """
    config = model.text_config
    own = config._attn_implementation
    if not is_seen(model):
        yield
        return
    token = _watching.set(_Watch(EAGER if eager or own is None else own, before, after))
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = own
        _watching.reset(token)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    watch = _watching.get()
    if watch.before is not None:
        tokens = query.shape[2]
        for side, tensor in zip(ATTENDED, (query, key, value), strict=True):
            watch.before(module, side, tensor[:, :, -tokens:].transpose(1, 2))
    default: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    function: Any = ALL_ATTENTION_FUNCTIONS.get_interface(watch.name, default)
    if function is None:
        raise NotImplementedError(f"{type(module).__name__} has no eager attention")
    attended, weights = function(module, query, key, value, attention_mask, **options)
    if watch.after is not None:
        _, kind = watch.masks.get(
            id(attention_mask), (None, Foreign("its attention takes a mask of its own"))
        )
        call = AttentionCall(
            module, query, key, value, attention_mask, kind, options, attended, weights, function
        )
        watch.after(call)
    return attended, weights


def _mask(*given: Any, **options: Any) -> Any:
    watch = _watching.get()
    made = ALL_MASK_ATTENTION_FUNCTIONS[watch.name](*given, **options)
    if made is not None:
        watch.masks[id(made)] = made, arena_mask(*given, **options)
    return made


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, _mask)
