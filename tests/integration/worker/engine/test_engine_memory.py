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
from worker.engine.model.attention_memory import pair_bytes

pytestmark = pytest.mark.integration


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
