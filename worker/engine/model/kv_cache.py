"""Bytes per token of the key-value cache, measured on the model."""

from typing import Any
from weakref import WeakKeyDictionary

import torch

from worker.engine.model.loaded import LoadedModel

_SHORT, _LONG = 4, 8
_measured: WeakKeyDictionary[torch.nn.Module, int] = WeakKeyDictionary()


def kv_bytes_per_token(model: LoadedModel) -> int:
    """Bytes of one more token in the cache, over all layers.

    Measured by two tiny forward passes, once per model. Head counts alone do not give it: latent attention
    keeps its compressed form, multi-query attention one head.
    """
    hf: Any = model.hf
    if hf not in _measured:
        long, short = (_cache_bytes(model, tokens) for tokens in (_LONG, _SHORT))
        _measured[hf] = (long - short) // (_LONG - _SHORT)
    return _measured[hf]


def _cache_bytes(model: LoadedModel, tokens: int) -> int:
    ids = torch.zeros(1, tokens, dtype=torch.long, device=model.device)
    with torch.inference_mode():
        output = model.hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=True)
    held = 0
    # a recurrent model keeps a state of one size, by another name
    for layer in getattr(getattr(output, "past_key_values", None), "layers", ()):
        for name in ("keys", "values"):
            tensor = getattr(layer, name, None)
            if isinstance(tensor, torch.Tensor):
                held += tensor.nbytes
    return held
