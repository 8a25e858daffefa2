"""Inputs of a forward pass over tokens of one request, with transformers' own cache."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from worker.engine.model.loaded import LoadedModel


def new_cache(model: LoadedModel) -> DynamicCache:
    """An empty cache for one request."""
    return DynamicCache(config=model.hf.config)


def cached_inputs(
    model: LoadedModel, tokens: Sequence[int], cache: Any, *, computed: int = 0, logits: int = 1
) -> dict[str, Any]:
    """Arguments of the model's forward.

    Args:
        tokens: to run now.
        computed: tokens in the cache.
        logits: of how many last tokens the logits are computed, if the model knows such a choice.
    """
    known = inspect.signature(type(model.hf).forward).parameters
    recurrent = "cache_params" in known
    # nnsight adds a mask of the new tokens' length, which hides the cache: the mask must be given. A state
    # has no tokens to hide
    seen = len(tokens) if recurrent else computed + len(tokens)
    inputs: dict[str, Any] = {
        "input_ids": torch.tensor([list(tokens)], device=model.device),
        "attention_mask": torch.ones(1, seen, dtype=torch.int64, device=model.device),
        "cache_params" if recurrent else "past_key_values": cache,
        "use_cache": True,
    }
    if "logits_to_keep" in known:
        inputs["logits_to_keep"] = logits
    return inputs
