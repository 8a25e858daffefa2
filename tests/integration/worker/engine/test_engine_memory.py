"""The plan's arithmetic against what a model really allocates and hands out."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, Qwen3Config

from actograph import plans
from actograph.contract.models import ModelStructure
from actograph.contract.specs import Dtype, SamplingSpec
from worker.engine.engine import Engine
from worker.engine.model.attention_memory import pair_bytes
from worker.engine.model.kv_cache import kv_bytes_per_token
from worker.engine.requests import BufferOptions
from worker.engine.rows.held_rows import HeldRows

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
        assert got == rows * plans.bytes_per_token(engine.structure, hooks, dtype)


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
    assert engine.plan_batch_size([], prompt_tokens=20, max_tokens=20) == plans.CPU_BATCH_CAP
    # 576 KB for each sample's largest hook: the writer can empty its buffer between two of them
    assert engine.plan_batch_size(hooks, prompt_tokens=1500, max_tokens=20, options=small) == 1
    assert engine.plan_batch_size(hooks, prompt_tokens=500, max_tokens=20, options=small) == 5
    assert engine.plan_batch_size([], prompt_tokens=20, max_tokens=20, most=40) == 40


def held_at_most(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that the writer holds after each item."""
    seen: list[int] = []
    add = HeldRows.add

    def noted(held: HeldRows, item: Any) -> None:
        add(held, item)
        seen.append(held.bytes)

    monkeypatch.setattr(HeldRows, "add", noted)
    return seen


def test_a_batch_whose_rows_are_many_times_the_buffer_is_held_within_it(
    engine_of: Callable[[str], Engine],
    keeping_sink: Any,
    requests_for: Any,
    reference: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of("tiny-qwen3")
    hooks = [hook for hook in engine.structure.hooks if hook != "logits"]
    budget = 256 << 10
    options = BufferOptions(host_buffer_bytes=budget, device_buffer_bytes=32 << 10)
    texts = [f"Question: {n} and {n + 1} are? " * (3 + n) for n in range(8)]
    requests = requests_for(engine, texts)
    longest = max(len(request.prompt_ids) for request in requests)
    assert engine.plan_batch_size(hooks, prompt_tokens=longest, max_tokens=20, options=options) >= 2
    seen, sink = held_at_most(monkeypatch), keeping_sink()
    made = engine.generate(
        requests, sampling=SamplingSpec(max_tokens=20), hooks=hooks, sink=sink, options=options
    )
    strip = len(requests) * longest * 4 * engine.structure.hidden_size
    rows = sum(sink.rows(i, hook).nbytes for i in range(len(requests)) for hook in hooks)
    assert rows > 8 * budget
    assert max(seen) <= max(budget, strip)
    for index in (0, 7):
        want = reference(engine, made[index], hooks)
        for hook in hooks:
            assert torch.allclose(sink.rows(index, hook), want[hook], rtol=1e-4, atol=1e-4)


def peak_of(run: Callable[[], object]) -> int:
    """Most bytes of torch's CPU allocator that were alive at once during `run`, above the start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    assert profiled.profiler is not None
    events = profiled.profiler.kineto_results.events()
    alive = peak = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_padded_batch_takes_about_what_is_planned(
    tmp_path: Path, attention: str, dtype: torch.dtype
) -> None:
    """Long prompts in a narrow model, so that pairs of tokens take most of it."""
    config = Qwen3Config(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        vocab_size=64,
        max_position_embeddings=4096,
    )
    factory = cast(Any, AutoModelForCausalLM)
    model = factory.from_config(config, dtype=dtype, attn_implementation=attention).eval()
    loaded = SimpleNamespace(hf=model, device=torch.device("cpu"))
    pairs = pair_bytes(loaded)  # type: ignore[arg-type]
    samples, prompt, new = 4, 700, 3
    ids = torch.ones(samples, prompt, dtype=torch.long)
    mask = torch.ones_like(ids)
    for sample in range(samples):
        mask[sample, : 50 * sample] = 0

    def run() -> None:
        with torch.inference_mode():
            model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=new, do_sample=False)

    shape = ModelStructure(
        model="m", architecture="X", num_layers=2, hidden_size=32, vocab_size=64, context_length=4096,
        dtype=str(dtype).removeprefix("torch."), device="cpu", num_parameters=1, chat_template=False,
        eos_token_ids=[], hooks={}, module_locations=[],
        mask_bytes_per_pair=pairs.mask, scores_bytes_per_pair=pairs.scores,
    )  # fmt: skip
    planned = plans.batch_memory(
        shape,
        2 * 2 * 16 * dtype.itemsize,
        plans.CaptureNeed(),
        samples=samples,
        prompt_tokens=prompt,
        max_tokens=new,
    )
    measured = peak_of(run)
    assert 0.6 * planned.device < measured < 1.1 * planned.device, (measured, planned)
    assert planned.device - planned.attention < measured, "without the pairs the plan would be too small"
