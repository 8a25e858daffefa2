"""Captured rows and tokens against transformers itself."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from actograph.contract.errors import ContextLengthExceeded, InvalidRequest, UnknownHook
from actograph.contract.row_selection import NamedPositions
from actograph.contract.specs import SamplingSpec
from worker.engine.engine import Engine
from worker.engine.model.memory import LearnedLimit
from worker.engine.requests import BufferOptions, GenerationRequest

pytestmark = pytest.mark.integration

MODELS = ["tiny-qwen3", "stories260k"]  # trained; random ones are in `architectures`
PROMPTS = [
    "Once upon a time there was a little girl who had 12 apples and gave 5 of them away.",
    "The cat",
    "Tom has 34 books and Mia has 57 books. How many do they have in total?",
    "a",
]
EngineOf = Callable[[str], Engine]


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_every_point_of_every_token_equals_a_plain_forward(
    name: str, engine_of: EngineOf, keeping_sink: Any, requests_for: Any, reference: Any
) -> None:
    engine = engine_of(name)
    hooks = list(engine.structure.hooks)
    sink = keeping_sink()
    made = engine.generate(
        requests_for(engine, PROMPTS), sampling=SamplingSpec(max_tokens=24), hooks=hooks, sink=sink
    )
    for i, generation in enumerate(made):
        assert generation.error is None
        rows = len(generation.prompt_ids) + len(generation.generated_ids) - 1
        want = reference(engine, generation, hooks)
        for hook in hooks:
            first = len(generation.prompt_ids) - 1 if hook == "logits" else 0
            assert sink.first_row(i, hook) == first
            got = sink.rows(i, hook)
            assert got.shape == (rows - first, engine.structure.hooks[hook].width)
            assert close(got, want[hook][first:]), hook


def test_stop_strings(engine_of: EngineOf, requests_for: Any, keeping_sink: Any) -> None:
    engine = engine_of("stories260k")
    requests = requests_for(engine, ["Once upon a time", "Lily and Tom went to"])
    free = engine.generate(requests, sampling=SamplingSpec(max_tokens=60))
    texts = [engine.model.tokenizer.decode(list(g.generated_ids)) for g in free]
    stop = texts[0][20:26]
    sink = keeping_sink()
    made = engine.generate(
        requests, sampling=SamplingSpec(max_tokens=60, stop=[stop, "§§"]), hooks=["resid_post.4"], sink=sink
    )
    for i, (g, text) in enumerate(zip(made, texts, strict=True)):
        got = engine.model.tokenizer.decode(list(g.generated_ids))
        if stop in text:
            assert g.finish_reason == "stop"
            assert stop in got
            assert stop not in engine.model.tokenizer.decode(list(g.generated_ids[:-1]))
        else:
            assert got == text
        assert sink.rows(i, "resid_post.4").shape[0] == len(g.prompt_ids) + len(g.generated_ids) - 1
    assert made[0].finish_reason == "stop"


@pytest.mark.parametrize("positions", ["prompt", "generated", "last", "last_prompt"])
def test_positions_are_slices_of_all(
    positions: NamedPositions, engine_of: EngineOf, keeping_sink: Any, requests_for: Any
) -> None:
    engine = engine_of("tiny-qwen3")
    requests = requests_for(engine, PROMPTS)
    hooks = ["embed", "attn_in.0", "resid_post.1", "logits"]
    whole, part = keeping_sink(), keeping_sink()
    made = engine.generate(requests, sampling=SamplingSpec(max_tokens=15), hooks=hooks, sink=whole)
    engine.generate(
        requests, sampling=SamplingSpec(max_tokens=15), hooks=hooks, sink=part, positions=positions
    )
    for i, g in enumerate(made):
        prompt, rows = len(g.prompt_ids), len(g.prompt_ids) + len(g.generated_ids) - 1
        low, high = {
            "prompt": (0, prompt),
            "generated": (prompt, rows),
            "last": (rows - 1, rows),
            "last_prompt": (prompt - 1, prompt),
        }[positions]
        for hook in hooks:
            offset = whole.first_row(i, hook)
            low_here = max(low, offset)
            assert part.first_row(i, hook) == low_here
            assert torch.equal(part.rows(i, hook), whole.rows(i, hook)[low_here - offset : high - offset])


def test_any_module_location_can_be_captured(
    engine_of: EngineOf, keeping_sink: Any, requests_for: Any, reference: Any
) -> None:
    engine = engine_of("qwen3")
    hooks = list(engine.structure.module_locations)
    assert "model.layers.1.self_attn.q_norm.output" in hooks
    sink = keeping_sink()
    made = engine.generate(
        requests_for(engine, PROMPTS[:2]), sampling=SamplingSpec(max_tokens=6), hooks=hooks, sink=sink
    )
    for i, g in enumerate(made):
        want = reference(engine, g, hooks)
        for hook in hooks:
            assert close(sink.rows(i, hook), want[hook][sink.first_row(i, hook) :]), hook


def test_small_buffers_give_the_same_rows(engine_of: EngineOf, keeping_sink: Any, requests_for: Any) -> None:
    engine = engine_of("llama")
    requests = requests_for(engine, PROMPTS)
    hooks = list(engine.structure.hooks)
    one, many = keeping_sink(), keeping_sink()
    engine.generate(requests, sampling=SamplingSpec(max_tokens=40), hooks=hooks, sink=one)
    engine.generate(
        requests,
        sampling=SamplingSpec(max_tokens=40),
        hooks=hooks,
        sink=many,
        options=BufferOptions(host_buffer_bytes=50_000, shard_bytes=20_000, device_buffer_bytes=20_000),
    )
    for i in range(len(requests)):
        assert len(many.chunks[i]["resid_post.0"]) > 2
        for hook in hooks:
            assert torch.equal(one.rows(i, hook), many.rows(i, hook))


def test_bfloat16_model_keeps_the_bits(
    engine_of: EngineOf, keeping_sink: Any, requests_for: Any, random_engine_of: Any
) -> None:
    from transformers import Qwen3Config

    source = engine_of("qwen3")
    config = Qwen3Config(**{**source.model.hf.config.to_dict(), "dtype": "bfloat16"})
    engine = random_engine_of(config, source.model.tokenizer, "bf16")
    engine.model.hf.to(torch.bfloat16)
    engine = Engine(engine.model)
    assert engine.structure.dtype == "bfloat16"
    request = requests_for(engine, PROMPTS[:1])
    raw, wide = keeping_sink(), keeping_sink()
    engine.generate(request, sampling=SamplingSpec(max_tokens=8), hooks=["attn_in.1"], sink=raw)
    engine.generate(
        request, sampling=SamplingSpec(max_tokens=8), hooks=["attn_in.1"], sink=wide, dtype="float32"
    )
    assert raw.rows(0, "attn_in.1").dtype == torch.bfloat16
    assert wide.rows(0, "attn_in.1").dtype == torch.float32
    assert torch.equal(raw.rows(0, "attn_in.1").float(), wide.rows(0, "attn_in.1"))


def test_a_raising_sink_fails_only_its_sample(
    engine_of: EngineOf, keeping_sink: Any, requests_for: Any, reference: Any
) -> None:
    engine = engine_of("stories260k")
    sink = keeping_sink(fail=[1])
    made = engine.generate(
        requests_for(engine, PROMPTS[:3]), sampling=SamplingSpec(max_tokens=9), hooks=["mlp_out.2"], sink=sink
    )
    assert isinstance(made[1].error, OSError)
    assert made[1].generated_ids
    for i in (0, 2):
        assert made[i].error is None
        assert close(sink.rows(i, "mlp_out.2"), reference(engine, made[i], ["mlp_out.2"])["mlp_out.2"])


def test_cancel_between_steps(engine_of: EngineOf, keeping_sink: Any, requests_for: Any) -> None:
    engine = engine_of("stories260k")
    steps: list[int] = []
    sink = keeping_sink()
    made = engine.generate(
        requests_for(engine, PROMPTS[:2]),
        sampling=SamplingSpec(max_tokens=300),
        hooks=["resid_post.0"],
        sink=sink,
        on_step=steps.append,
        should_stop=lambda: bool(steps) and steps[-1] >= 7,
    )
    assert steps == list(range(1, 8))
    assert [g.finish_reason for g in made] == ["cancelled", "cancelled"]
    assert all(len(g.generated_ids) == 7 for g in made)
    assert not sink.chunks
    again = engine.generate(requests_for(engine, PROMPTS[:2]), sampling=SamplingSpec(max_tokens=5))
    assert [g.finish_reason for g in again] == ["length", "length"]


def test_cancel_while_the_sink_is_slow(engine_of: EngineOf, keeping_sink: Any, requests_for: Any) -> None:
    engine = engine_of("stories260k")
    asked = threading.Event()

    class Slow(keeping_sink):  # type: ignore[misc]
        def write(self, index: int, rows: Any) -> None:
            asked.set()  # from now on the caller wants to stop
            time.sleep(0.5)

    made = engine.generate(
        requests_for(engine, ["a"]),
        sampling=SamplingSpec(max_tokens=12),
        hooks=["resid_post.0"],
        sink=Slow(),
        should_stop=asked.is_set,
        options=BufferOptions(host_buffer_bytes=1, max_block_steps=1, queue_blocks=1),
    )
    assert made[0].finish_reason == "cancelled"


class TraceBroke(Exception):
    pass


def test_an_error_inside_a_trace_leaves_the_next_one_clean(
    engine_of: EngineOf, keeping_sink: Any, requests_for: Any, reference: Any
) -> None:
    engine = engine_of("tiny-qwen3")
    requests = requests_for(engine, PROMPTS[:2])
    call: dict[str, Any] = {"sampling": SamplingSpec(max_tokens=10), "hooks": ["resid_post.0"]}

    def fail(step: int) -> None:
        if step == 4:
            raise TraceBroke

    with pytest.raises(TraceBroke):
        engine.generate(requests, sink=keeping_sink(), on_step=fail, **call)
    sink = keeping_sink()
    made = engine.generate(requests, sink=sink, **call)
    for i, g in enumerate(made):
        assert close(sink.rows(i, "resid_post.0"), reference(engine, g, ["resid_post.0"])["resid_post.0"])


def test_out_of_memory_halves_the_batch_and_fails_only_what_does_not_fit_alone(
    engine_of: EngineOf, keeping_sink: Any, requests_for: Any, reference: Any
) -> None:
    engine = engine_of("stories260k")
    requests = requests_for(engine, [*PROMPTS, "Lily"])
    sink = keeping_sink()
    layer = engine.model.hf.get_submodule("model.layers.3")

    def scarce(module: Any, args: Any, kwargs: Any) -> None:
        hidden = args[0]
        if hidden.shape[0] > 2 or (hidden.shape[1] == 1 and hidden.shape[0] == 1 and tight):
            raise torch.OutOfMemoryError("CUDA out of memory")

    tight: list[int] = []
    handle = layer.register_forward_pre_hook(scarce, with_kwargs=True)
    try:
        made = engine.generate(
            requests, sampling=SamplingSpec(max_tokens=6), hooks=["embed", "resid_mid.4"], sink=sink
        )
        longest = max(len(r.prompt_ids) for r in requests)
        assert engine.plan_batch_size([], prompt_tokens=longest, max_tokens=6) == 2
        assert engine.plan_batch_size([], prompt_tokens=3 * longest, max_tokens=3 * 6) == 1
        tight.append(1)
        alone = engine.generate(requests[:1], sampling=SamplingSpec(max_tokens=6))
    finally:
        handle.remove()
        engine.limit = LearnedLimit()
    assert set(sink.resets) == set(range(5))
    for i, g in enumerate(made):
        assert g.error is None
        want = reference(engine, g, ["embed", "resid_mid.4"])
        assert close(sink.rows(i, "embed"), want["embed"])
        assert close(sink.rows(i, "resid_mid.4"), want["resid_mid.4"])
    assert alone[0].finish_reason == "error"
    assert alone[0].error is not None
    assert "rss_bytes" in str(alone[0].error)


def test_requests_that_cannot_run_are_refused_first(
    engine_of: EngineOf, keeping_sink: Any, requests_for: Any
) -> None:
    engine = engine_of("llama")
    good = requests_for(engine, ["a"])
    with pytest.raises(InvalidRequest, match="no tokens"):
        engine.generate(
            [*good, GenerationRequest(key="x", prompt_ids=(), seed=0)], sampling=SamplingSpec(max_tokens=5)
        )
    for wrong in ((3, 512), (-1,)):
        with pytest.raises(InvalidRequest, match="0 to 511"):
            engine.generate(
                [GenerationRequest(key="x", prompt_ids=wrong, seed=0)], sampling=SamplingSpec(max_tokens=5)
            )
    with pytest.raises(ContextLengthExceeded, match=r"need 16\d tokens; the model's context is 160"):
        engine.generate(good, sampling=SamplingSpec(max_tokens=159 + len(good[0].prompt_ids) // 2 + 1))
    for name in ("resid_post.99", "model.layers.1.__class__", "config", "model.layers.1.output.x"):
        with pytest.raises(UnknownHook):
            engine.generate(good, sampling=SamplingSpec(max_tokens=5), hooks=[name], sink=keeping_sink())
    with pytest.raises(ValueError, match="sink"):
        engine.generate(good, sampling=SamplingSpec(max_tokens=5), hooks=["embed"])


def test_the_whole_context_can_be_used(engine_of: EngineOf, keeping_sink: Any) -> None:
    engine = engine_of("llama")
    request = GenerationRequest(key="x", prompt_ids=(3,) * 100, seed=0)
    made = engine.generate(
        [request], sampling=SamplingSpec(max_tokens=60), hooks=["embed"], sink=keeping_sink()
    )
    assert made[0].error is None
    assert made[0].finish_reason == "stop" or len(made[0].generated_ids) == 60
