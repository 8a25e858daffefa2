"""The plan's arithmetic against what a model really allocates and hands out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from actograph.contract.specs import Dtype, SamplingSpec
from worker.engine import memory
from worker.engine.engine import Engine
from worker.engine.kv_cache import kv_bytes_per_token
from worker.engine.requests import BufferOptions

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", ["tiny-qwen3", "llama"])
def test_bytes_per_token_is_what_the_sink_gets(
    name: str, engine_of: Callable[[str], Engine], keeping_sink: Any, requests_for: Any
) -> None:
    engine = engine_of(name)
    hooks = [hook for hook in engine.structure.hooks if hook != "logits"]
    dtypes: tuple[Dtype, ...] = ("model", "float16")
    for dtype in dtypes:
        sink = keeping_sink()
        made = engine.generate(
            requests_for(engine, ["The cat"]), sampling=SamplingSpec(max_tokens=7), hooks=hooks, sink=sink,
            dtype=dtype,
        )  # fmt: skip
        rows = len(made[0].prompt_ids) + len(made[0].generated_ids) - 1
        got = sum(sink.rows(0, hook).nbytes for hook in hooks)
        assert got == rows * memory.bytes_per_token(engine.structure, hooks, dtype)


def test_kv_bytes_are_those_of_the_cache(engine_of: Callable[[str], Engine]) -> None:
    for name in ("tiny-qwen3", "stories260k", "qwen2"):
        model = engine_of(name).model
        with torch.inference_mode():
            cache = model.hf(input_ids=torch.ones(1, 10, dtype=torch.long), use_cache=True).past_key_values
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        assert held == 10 * kv_bytes_per_token(model)


def test_the_plan_shrinks_with_what_a_sample_needs(engine_of: Callable[[str], Engine]) -> None:
    engine = engine_of("tiny-qwen3")
    hooks = list(engine.structure.hooks)
    small = BufferOptions(host_buffer_bytes=1 << 20)
    assert engine.plan_batch_size([], prompt_tokens=20, max_tokens=20) == memory.CPU_BATCH_CAP
    assert engine.plan_batch_size(hooks, prompt_tokens=1500, max_tokens=20, options=small) == 1
    assert engine.plan_batch_size(hooks, prompt_tokens=20, max_tokens=20, options=small) > 1
