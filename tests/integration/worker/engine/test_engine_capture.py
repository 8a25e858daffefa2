"""Captured rows and tokens against transformers itself."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from actograph.contract.errors import ContextLengthExceeded, InvalidRequest, UnknownHook
from actograph.contract.row_selection import NamedPositions
from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import generate
from worker.engine.engine import Engine
from worker.engine.requests import GenerationRequest
from worker.engine.runs import RunOptions

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
@pytest.mark.parametrize("traced", [False, True])
def test_every_point_of_every_token_equals_a_plain_forward(
    name: str,
    traced: bool,
    *,
    engine_of: EngineOf,
    keeping_sink: Any,
    requests_for: Any,
    reference: Any,
    as_traced: Any,
) -> None:
    engine = engine_of(name)
    hooks = list(engine.structure.hooks)
    sink = keeping_sink()
    made = generate(
        engine, requests_for(engine, PROMPTS), sampling=SamplingSpec(max_tokens=24), hooks=hooks, sink=sink
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
    free = generate(engine, requests, sampling=SamplingSpec(max_tokens=60))
    texts = [engine.model.tokenizer.decode(list(g.generated_ids)) for g in free]
    stop = texts[0][20:26]
    sink = keeping_sink()
    made = generate(
        engine,
        requests,
        sampling=SamplingSpec(max_tokens=60, stop=[stop, "§§"]),
        hooks=["resid_post.4"],
        sink=sink,
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
    made = generate(engine, requests, sampling=SamplingSpec(max_tokens=15), hooks=hooks, sink=whole)
    generate(
        engine, requests, sampling=SamplingSpec(max_tokens=15), hooks=hooks, sink=part, positions=positions
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
    made = generate(
        engine, requests_for(engine, PROMPTS[:2]), sampling=SamplingSpec(max_tokens=6), hooks=hooks, sink=sink
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
    generate(engine, requests, sampling=SamplingSpec(max_tokens=40), hooks=hooks, sink=one)
    generate(
        engine,
        requests,
        sampling=SamplingSpec(max_tokens=40),
        hooks=hooks,
        sink=many,
        options=RunOptions(shard_bytes=20_000),
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
    generate(engine, request, sampling=SamplingSpec(max_tokens=8), hooks=["attn_in.1"], sink=raw)
    generate(
        engine, request, sampling=SamplingSpec(max_tokens=8), hooks=["attn_in.1"], sink=wide, dtype="float32"
    )
    assert raw.rows(0, "attn_in.1").dtype == torch.bfloat16
    assert wide.rows(0, "attn_in.1").dtype == torch.float32
    assert torch.equal(raw.rows(0, "attn_in.1").float(), wide.rows(0, "attn_in.1"))


def test_a_raising_sink_fails_only_its_sample(
    engine_of: EngineOf, keeping_sink: Any, requests_for: Any, reference: Any
) -> None:
    engine = engine_of("stories260k")
    sink = keeping_sink(fail=[1])
    made = generate(
        engine,
        requests_for(engine, PROMPTS[:3]),
        sampling=SamplingSpec(max_tokens=9),
        hooks=["mlp_out.2"],
        sink=sink,
    )
    assert isinstance(made[1].error, OSError)
    for i in (0, 2):
        assert made[i].error is None
        assert close(sink.rows(i, "mlp_out.2"), reference(engine, made[i], ["mlp_out.2"])["mlp_out.2"])


class TraceBroke(Exception):
    pass


@pytest.mark.parametrize("traced", [False, True])
def test_an_error_inside_a_run_leaves_the_next_one_clean(
    traced: bool, *, engine_of: EngineOf, keeping_sink: Any, requests_for: Any, reference: Any, as_traced: Any
) -> None:
    engine = engine_of("tiny-qwen3")
    requests = requests_for(engine, PROMPTS[:2])
    call: dict[str, Any] = {"sampling": SamplingSpec(max_tokens=10), "hooks": ["resid_post.0"]}

    def fail(index: int, generated: int) -> bool:
        if generated == 4:
            raise TraceBroke
        return False

    with as_traced(engine, traced):
        with pytest.raises(TraceBroke):
            generate(engine, requests, sink=keeping_sink(), drop=fail, **call)
        sink = keeping_sink()
        made = generate(engine, requests, sink=sink, **call)
    for i, g in enumerate(made):
        assert close(sink.rows(i, "resid_post.0"), reference(engine, g, ["resid_post.0"])["resid_post.0"])


def test_requests_that_cannot_run_fail_alone(
    engine_of: EngineOf, keeping_sink: Any, requests_for: Any
) -> None:
    engine = engine_of("llama")
    good = requests_for(engine, ["a"])
    long = SamplingSpec(max_tokens=159 + len(good[0].prompt_ids) // 2 + 1)
    five = SamplingSpec(max_tokens=5)
    for ids, sampling, kind, message in (
        ((), five, InvalidRequest, "no tokens"),
        ((3, 512), five, InvalidRequest, "0 to 511"),
        ((-1,), five, InvalidRequest, "0 to 511"),
        (good[0].prompt_ids, long, ContextLengthExceeded, r"need 16\d tokens; the model's context is 160"),
    ):
        bad, other = generate(
            engine,
            [GenerationRequest(key="x", prompt_ids=ids, seed=0), replace(good[0], max_tokens=3)],
            sampling=sampling,
        )
        assert isinstance(bad.error, kind) and re.search(message, str(bad.error))
        assert other.error is None
    for name in ("resid_post.99", "model.layers.1.__class__", "config", "model.layers.1.output.x"):
        (bad,) = generate(engine, good, sampling=five, hooks=[name], sink=keeping_sink())
        assert isinstance(bad.error, UnknownHook)
    (bad,) = generate(engine, good, sampling=five, hooks=["embed"])
    assert "sink" in str(bad.error)


def test_the_whole_context_can_be_used(engine_of: EngineOf, keeping_sink: Any) -> None:
    engine = engine_of("llama")
    request = GenerationRequest(key="x", prompt_ids=(3,) * 100, seed=0)
    made = generate(
        engine, [request], sampling=SamplingSpec(max_tokens=60), hooks=["embed"], sink=keeping_sink()
    )
    assert made[0].error is None
    assert made[0].finish_reason == "stop" or len(made[0].generated_ids) == 60
