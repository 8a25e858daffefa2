"""The masks that a model asks transformers for, as the arena's attention applies them.

A model's own forward attends by its mask; the arguments of its attention modules may say less. So the mask
decides. It is causal, perhaps with a window; a model that gives its attention another one is refused.
"""

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, NamedTuple

from transformers.masking_utils import and_masks, causal_mask_function, sliding_window_overlay

_JOINED = and_masks(causal_mask_function).__code__
_WINDOWED = sliding_window_overlay(1).__code__


class UnknownAttention(Exception):
    """A model asks its attention for something that the arena does not have."""


class Windowed(NamedTuple):
    """Stands for a causal mask with a window. A model can pass it on to its attention, and not read it."""

    window: int  # a token sees itself and the `window - 1` tokens before it


class Foreign(NamedTuple):
    """Stands for any other mask. Some models make masks that none of their layers uses."""

    reason: str  # why it is refused


def arena_mask(
    *_: Any, mask_function: Callable[..., Any], attention_mask: Any = None, **__: Any
) -> Windowed | Foreign | None:
    """The mask of a packed pass, as transformers asks for it; None for a causal one."""
    if attention_mask is not None:
        return Foreign("its mask has padding")
    window, causal = None, False
    for one in _joined(mask_function):
        if one is causal_mask_function:
            causal = True
        elif isinstance(one, FunctionType) and one.__code__ is _WINDOWED and one.__closure__:
            size = int(one.__closure__[0].cell_contents)
            window = size if window is None else min(window, size)
        else:
            name = getattr(one, "__qualname__", type(one).__name__).partition(".")[0]
            return Foreign(f"its mask is made by {name}")
    if not causal:
        return Foreign("its attention is not causal")
    return None if window is None else Windowed(window)


def _joined(mask_function: Any) -> Iterator[Any]:
    """The functions of which a mask is the intersection."""
    if isinstance(mask_function, FunctionType) and mask_function.__code__ is _JOINED:
        assert mask_function.__closure__
        for one in mask_function.__closure__[0].cell_contents:
            yield from _joined(one)
    else:
        yield mask_function
