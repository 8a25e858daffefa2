"""Promises of interventions; `test_random_edits` holds the edited rows against plain hooks."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from actograph.contract.errors import InterventionFailed
from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import PROMPTS, KeepingSink, generate, random_engine, requests_for
from tests.support.token_choosers import rule_for
from worker.engine.engine import Engine
from worker.engine.messages import Edit

pytestmark = pytest.mark.integration

EngineOf = Callable[[str], Engine]
GREEDY = SamplingSpec(max_tokens=12)
SAMPLED = SamplingSpec(max_tokens=12, temperature=0.9, top_p=0.95)


def vector(engine: Engine, hook: str, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(engine.width_of(hook), generator=generator) * scale


def test_the_same_tensor_by_two_names(engine_of: EngineOf) -> None:
    engine = engine_of("tiny-qwen3")
    rows = []
    for hook in ("resid_pre.1", "resid_post.0"):
        edit = Edit(hook=hook, op="add", vector=vector(engine, hook).numpy())
        sink = KeepingSink()
        requests = [replace(r, edits=(edit,)) for r in requests_for(engine, PROMPTS)]
        generate(
            engine, requests, sampling=GREEDY, hooks=["resid_post.0", "resid_pre.1", "logits"], sink=sink
        )
        assert torch.equal(sink.rows(0, "resid_post.0"), sink.rows(0, "resid_pre.1"))
        rows.append(sink.rows(0, "logits"))
    assert torch.equal(*rows)


def test_what_changes_nothing_leaves_every_bit(engine_of: EngineOf) -> None:
    engine = engine_of("tiny-qwen3")
    v = vector(engine, "resid_post.1")
    nothing = (
        Edit(hook="resid_post.1", op="add", vector=v.numpy(), coefficient=0.0),
        Edit(hook="resid_post.1", op="project_out", vector=v.numpy(), coefficient=0.0),
        Edit(hook="resid_post.1", op="scale", coefficient=1.0),
        Edit(hook="resid_post.1", op="add", vector=v.numpy(), rule=rule_for(range(99), [5000])),
    )
    requests = requests_for(engine, PROMPTS)
    hooks = list(engine.structure.hooks)
    plain_sink, sink = KeepingSink(), KeepingSink()
    want = generate(engine, requests, sampling=SAMPLED, hooks=hooks, sink=plain_sink)
    got = generate(
        engine, [replace(r, edits=nothing) for r in requests], sampling=SAMPLED, hooks=hooks, sink=sink
    )
    assert got == want
    for i in range(len(requests)):
        for hook in hooks:
            a, b = sink.rows(i, hook), plain_sink.rows(i, hook)
            assert torch.equal(a.view(torch.int32), b.view(torch.int32))


def test_half_precision_is_rounded_once_per_edit(engine_of: EngineOf) -> None:
    engine = random_engine(engine_of("llama").model.hf.config, engine_of("llama").model.tokenizer, "bf16")
    engine.model.hf.to(torch.bfloat16)
    engine = Engine(engine.model)
    hook = "mlp_out.0"
    v = vector(engine, hook)
    requests = requests_for(engine, PROMPTS[:1])
    before, after = KeepingSink(), KeepingSink()
    generate(engine, requests, sampling=GREEDY, hooks=[hook], sink=before)
    edit = Edit(hook=hook, op="add", vector=v.numpy(), coefficient=0.3, positions="prompt")
    generate(engine, [replace(requests[0], edits=(edit,))], sampling=GREEDY, hooks=[hook], sink=after)
    prompt = len(requests[0].prompt_ids)
    x = before.rows(0, hook)[:prompt]
    assert x.dtype == torch.bfloat16
    assert torch.equal(after.rows(0, hook)[:prompt], (x.float() + 0.3 * v).to(torch.bfloat16))


def test_a_model_driven_beyond_its_range_fails_that_sample_alone(engine_of: EngineOf) -> None:
    engine = engine_of("tiny-qwen3")
    requests = requests_for(engine, PROMPTS)
    third = len(requests[1].prompt_ids) + 2  # the row that chooses generated token 3
    huge = Edit(
        hook="resid_post.0",
        op="add",
        vector=np.full(96, 3e38, np.float32),
        coefficient=10.0,
        rule=rule_for(requests[1].prompt_ids, [third]),
    )
    mixed = [requests[0], replace(requests[1], edits=(huge,)), requests[2]]
    made = generate(engine, mixed, sampling=GREEDY, hooks=["resid_mid.0"], sink=KeepingSink())
    plain = generate(engine, requests, sampling=GREEDY)
    assert [made[0], made[2]] == [plain[0], plain[2]]
    assert isinstance(made[1].error, InterventionFailed)
    assert "generated token 3" in str(made[1].error)
    # what comes after the sample's end is no failure
    assert generate(engine, mixed, sampling=SamplingSpec(max_tokens=3))[1].error is None
