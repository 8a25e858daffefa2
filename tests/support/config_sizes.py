"""Compares sizes by a config with those of a model that is built from it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from worker.engine.model.from_config import sizes_of
from worker.engine.model.kv_cache import kv_bytes_per_token
from worker.engine.model.loaded import LoadedModel


def assert_sizes(config: Any, folder: Path, dtype: str = "bfloat16") -> None:
    """Weights, keys and values of a loaded model are to the byte what its config gives.

    The model is saved and loaded again, so that a load's own choices of dtypes count.
    """
    config.save_pretrained(folder)
    found = sizes_of(str(folder), dtype=dtype)
    automatic: Any = AutoModelForCausalLM
    automatic.from_config(config, dtype=getattr(torch, dtype)).save_pretrained(folder)
    hf = automatic.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    tokenizer: Any = SimpleNamespace(model_max_length=0)
    model = LoadedModel(name="m", hf=hf, tokenizer=tokenizer)
    assert found.weights_bytes == sum(one.numel() * one.element_size() for one in hf.parameters())
    assert found.num_parameters == sum(one.numel() for one in hf.parameters())
    assert found.token_bytes == kv_bytes_per_token(model)
    assert found.context_length == model.context_length
    assert (found.architecture, found.num_layers) == (
        type(hf).__name__,
        len(hf.get_submodule(model.layers_path)),
    )
