"""The plan's cost of a token in the cache against the cache that generation fills."""

from collections.abc import Callable

import pytest
import torch

from worker.engine.engine import Engine
from worker.engine.model.kv_cache import kv_bytes_per_token

pytestmark = pytest.mark.integration


def test_a_token_costs_what_the_cache_grows_by(architecture: str, engine_of: Callable[[str], Engine]) -> None:
    model = engine_of(architecture).model
    ids = torch.ones(3, 10, dtype=torch.long)  # fewer tokens than any sliding window has
    with torch.inference_mode():
        cache = model.hf(input_ids=ids, use_cache=True).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert held == 30 * kv_bytes_per_token(model)
    if architecture.startswith("deepseek"):  # the compressed form: 16 + 4 numbers in each of 3 layers
        assert kv_bytes_per_token(model) == 3 * (16 + 4) * 4
