"""Captured rows and tokens against transformers itself."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Qwen3Config

from actograph.contract.errors import ContextLengthExceeded, InvalidRequest, UnknownHook
from actograph.contract.row_selection import Positions, Stride
from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import (
    PROMPTS,
    KeepingSink,
    generate,
    random_engine,
    read_texts,
    reference,
    requests_for,
)
from tests.support.token_choosers import rule_for
from worker.engine.engine import Engine
from worker.engine.messages import Request, StatisticsOptions

pytestmark = pytest.mark.integration

EngineOf = Callable[[str], Engine]


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "traced"), [("tiny-qwen3", True), ("stories260k", False)])
def test_every_point_of_every_token_equals_a_plain_forward(
    name: str, traced: bool, engine_of: EngineOf, as_traced: Any
) -> None:
    engine = engine_of(name)
    hooks = list(engine.structure.hooks)
    sink = KeepingSink()
    requests = requests_for(engine, PROMPTS)
    with as_traced(engine, traced):
        made = generate(engine, requests, sampling=SamplingSpec(max_tokens=24), hooks=hooks, sink=sink)
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


#: rows to keep, what is made of them, and the rows that leave
SHAPINGS: dict[str, tuple[Positions | None, dict[str, Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "stride": (Stride(stride=3), {}, lambda x: x[::3]),
    "tokens": ([0, -1], {}, lambda x: x[sorted({0, len(x) - 1})]),
    "columns": (None, {"columns": (5, 2)}, lambda x: x[:, [5, 2]]),
    "mean": (None, {"reduce": "mean"}, lambda x: x.mean(0, keepdim=True)),
    "last": (None, {"reduce": "last"}, lambda x: x[-1:]),
}


def test_choices_of_rows_work_in_prefill_as_in_generation(
    engine_of: EngineOf, subtests: pytest.Subtests
) -> None:
    engine, whole = engine_of("qwen3"), KeepingSink()
    requests, hooks = requests_for(engine, PROMPTS), [*engine.structure.hooks, "lm_head.input"]
    read_texts(engine, requests, hooks=hooks, sink=whole)
    for i in range(len(requests)):
        assert torch.equal(whole.rows(i, "lm_head.input"), whole.rows(i, "final_norm"))
    for name, (keep, shaping, expected) in SHAPINGS.items():
        with subtests.test(name=name):
            chosen = KeepingSink()
            made = read_texts(
                engine,
                [replace(one, rule=keep and rule_for(one.prompt_ids, keep)) for one in requests],
                hooks=hooks,
                sink=chosen,
                shaping=shaping,
            )
            assert [g.finish_reason for g in made] == ["stop"] * len(requests)
            for i in range(len(requests)):
                for hook in hooks:
                    assert close(chosen.rows(i, hook), expected(whole.rows(i, hook))), hook


def test_rows_of_8_bits_are_the_rows_within_their_error(
    engine_of: EngineOf, as_traced: Any, subtests: pytest.Subtests
) -> None:
    engine, hooks = engine_of("qwen3"), ["embed", "resid_post.1", "mlp_out.0", "logits"]
    requests, sampling = requests_for(engine, PROMPTS), SamplingSpec(max_tokens=70)
    for name, shaping, traced in (
        ("rows", {}, False),
        ("traced", {}, True),
        ("columns", {"columns": (5, 2)}, False),
        ("mean", {"reduce": "mean"}, False),
        ("statistics beside rows", {"statistics": StatisticsOptions(threshold=1.0, rows=True)}, False),
    ):
        with subtests.test(name), as_traced(engine, traced):
            exact, small = KeepingSink(), KeepingSink()
            options: dict[str, Any] = {"sampling": sampling, "hooks": hooks, "shaping": shaping}
            generate(engine, requests, sink=exact, dtype="float32", **options)
            generate(engine, requests, sink=small, dtype="float8_e4m3fn", **options)
            for i in range(len(requests)):
                for hook in exact.chunks[i]:
                    want, got = exact.rows(i, hook), small.rows(i, hook)
                    if name == "mean" or hook not in hooks:  # reduced rows stay in full
                        assert {one.dtype for one in small.chunks[i][hook]} <= {"F32", "F64", "I64"}
                        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)
                        continue
                    assert {one.dtype for one in small.chunks[i][hook]} == {"F8_E4M3"}
                    assert got.shape == want.shape
                    largest = want.abs().amax(1, keepdim=True)
                    assert ((got - want).abs() <= largest / 28 + 1e-4).all(), hook


def test_integers_stay_integers_beside_rows_of_8_bits(engine_of: EngineOf) -> None:
    engine, sink = engine_of("qwen3_moe"), KeepingSink()
    hooks = ["expert_indices.0", "expert_weights.0", "resid_post.0"]
    read_texts(engine, requests_for(engine, PROMPTS[:1]), hooks=hooks, sink=sink, dtype="float8_e4m3fn")
    kinds = [sink.chunks[0][hook][0].dtype for hook in hooks]
    assert kinds == ["I64", "F8_E4M3", "F8_E4M3"]


def test_any_module_location_can_be_captured(engine_of: EngineOf) -> None:
    engine = engine_of("qwen3")
    hooks = list(engine.structure.module_locations)
    assert "model.layers.1.self_attn.q_norm.output" in hooks
    sink = KeepingSink()
    made = generate(
        engine, requests_for(engine, PROMPTS[:2]), sampling=SamplingSpec(max_tokens=6), hooks=hooks, sink=sink
    )
    for i, g in enumerate(made):
        want = reference(engine, g, hooks)
        for hook in hooks:
            assert close(sink.rows(i, hook), want[hook][sink.first_row(i, hook) :]), hook


def test_bfloat16_model_keeps_the_bits(engine_of: EngineOf) -> None:
    source = engine_of("qwen3")
    config = Qwen3Config(**{**source.model.hf.config.to_dict(), "dtype": "bfloat16"})
    engine = random_engine(config, source.model.tokenizer, "bf16")
    engine.model.hf.to(torch.bfloat16)
    engine = Engine(engine.model)
    assert engine.structure.dtype == "bfloat16"
    request = requests_for(engine, PROMPTS[:1])
    raw, wide = KeepingSink(), KeepingSink()
    generate(engine, request, sampling=SamplingSpec(max_tokens=8), hooks=["attn_in.1"], sink=raw)
    generate(
        engine, request, sampling=SamplingSpec(max_tokens=8), hooks=["attn_in.1"], sink=wide, dtype="float32"
    )
    assert raw.rows(0, "attn_in.1").dtype == torch.bfloat16
    assert wide.rows(0, "attn_in.1").dtype == torch.float32
    assert torch.equal(raw.rows(0, "attn_in.1").float(), wide.rows(0, "attn_in.1"))


class TraceBroke(Exception):
    pass


@pytest.mark.parametrize("traced", [False, True])
def test_an_error_inside_a_run_leaves_the_next_one_clean(
    traced: bool, engine_of: EngineOf, as_traced: Any
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
            generate(engine, requests, sink=KeepingSink(), drop=fail, **call)
        sink = KeepingSink()
        made = generate(engine, requests, sink=sink, **call)
    for i, g in enumerate(made):
        assert close(sink.rows(i, "resid_post.0"), reference(engine, g, ["resid_post.0"])["resid_post.0"])


def test_requests_that_cannot_run_fail_alone(engine_of: EngineOf) -> None:
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
            [Request(key="x", prompt_ids=ids, seed=0), replace(good[0], max_tokens=3)],
            sampling=sampling,
        )
        assert isinstance(bad.error, kind) and re.search(message, str(bad.error))
        assert other.error is None
    for name in ("resid_post.99", "model.layers.1.__class__", "config", "model.layers.1.output.x"):
        (bad,) = generate(engine, good, sampling=five, hooks=[name], sink=KeepingSink())
        assert isinstance(bad.error, UnknownHook)
    (bad,) = generate(engine, good, sampling=five, hooks=["embed"])
    assert "sink" in str(bad.error)


def test_the_whole_context_can_be_used(engine_of: EngineOf) -> None:
    engine = engine_of("llama")
    request = Request(key="x", prompt_ids=(3,) * 100, seed=0)
    made = generate(
        engine, [request], sampling=SamplingSpec(max_tokens=60), hooks=["embed"], sink=KeepingSink()
    )
    assert made[0].error is None
    assert made[0].finish_reason == "stop" or len(made[0].generated_ids) == 60
