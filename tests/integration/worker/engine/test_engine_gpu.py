"""The same promises on a GPU: rows through pinned memory, flat device memory, a real out-of-memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import Qwen3Config

from actograph.contract.specs import SamplingSpec
from worker.engine.engine import Engine
from worker.engine.learned_limit import LearnedLimit
from worker.engine.model import wrap_model
from worker.engine.requests import BufferOptions, GenerationRequest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(scope="module")
def engine(engine_of: Callable[[str], Engine], random_engine_of: Any) -> Engine:
    config = Qwen3Config(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=512,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
    )
    made = random_engine_of(config, engine_of("stories260k").model.tokenizer, "gpu")
    hf: Any = made.model.hf
    hf.generation_config.eos_token_id = None
    return Engine(wrap_model(hf.to("cuda"), made.model.tokenizer, name="gpu"))


def requests(*lengths: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(key=str(i), prompt_ids=tuple((7 * i + 3 * t) % 500 + 3 for t in range(n)), seed=i)
        for i, n in enumerate(lengths)
    ]


@pytest.mark.parametrize(
    "options", [BufferOptions(), BufferOptions(host_buffer_bytes=1 << 20, max_block_steps=5)]
)
def test_rows_equal_a_plain_forward(engine: Engine, options: BufferOptions, keeping_sink: Any) -> None:
    hooks = list(engine.structure.hooks)
    sink = keeping_sink()
    made = engine.generate(
        requests(40, 3, 17), sampling=SamplingSpec(max_tokens=33), hooks=hooks, sink=sink, options=options
    )
    for i, g in enumerate(made):
        assert g.error is None
        ids = torch.tensor([g.prompt_ids + g.generated_ids[:-1]], device="cuda")
        with torch.inference_mode():
            states = engine.model.hf(input_ids=ids, output_hidden_states=True).hidden_states
        for layer in range(6):
            got = sink.rows(i, f"resid_pre.{layer}")
            assert torch.allclose(got, states[layer][0].cpu(), rtol=1e-3, atol=1e-3)


def test_device_memory_does_not_grow_with_max_tokens(engine: Engine, keeping_sink: Any) -> None:
    hooks = list(engine.structure.hooks)
    options = BufferOptions(host_buffer_bytes=8 << 20, device_buffer_bytes=1 << 20)

    def peak(tokens: int) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        engine.generate(
            requests(16, 16), sampling=SamplingSpec(max_tokens=tokens), hooks=hooks, sink=keeping_sink(),
            options=options,
        )  # fmt: skip
        cache = 2 * (16 + tokens) * 2 * 6 * 2 * 64 * 4
        return torch.cuda.max_memory_allocated() - before - 2 * cache

    peak(8)
    assert peak(1024) - peak(64) < 4 << 20


def test_out_of_memory_is_survived(engine: Engine, keeping_sink: Any) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + (48 << 20)) / total)
    try:
        made = engine.generate(
            requests(*[2000] * 16), sampling=SamplingSpec(max_tokens=4), hooks=["embed"], sink=keeping_sink()
        )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        engine.limit = LearnedLimit()
    assert any(g.error is None for g in made) or all("cuda_allocated" in str(g.error) for g in made)
    after = engine.generate(requests(5), sampling=SamplingSpec(max_tokens=4))
    assert after[0].finish_reason == "length"
