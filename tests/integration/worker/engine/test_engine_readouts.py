"""Readouts in the pass that computes the rows: of every token, member by member, in both forwards."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from actograph.contract.interventions import vector_sha256
from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import PROMPTS, KeepingSink, generate, requests_for
from tests.support.token_choosers import rule_for
from worker.engine.engine import Engine
from worker.engine.messages import Capture, Edit, Readout, Request, RunOptions

pytestmark = pytest.mark.integration

EngineOf = Callable[[str], Engine]
HOOK = "resid_post.1"
SAMPLING = SamplingSpec(max_tokens=9, temperature=1.0)


def readout(engine: Engine, *, hook: str = HOOK, seed: int = 0, bias: float = 0.5, name: str = "") -> Readout:
    vector = np.random.default_rng(seed).normal(size=engine.width_of(hook)).astype(np.float32)
    sha256 = vector_sha256(vector.tolist())
    return Readout(name=f"readout:{name or seed}", hook=hook, sha256=sha256, bias=bias, vector=vector)


def due(rows: torch.Tensor, one: Readout) -> Any:
    """Values of rows, by the formula."""
    assert one.vector is not None
    return rows.double().numpy() @ one.vector.astype(np.float64)[:, None] + one.bias


def run(engine: Engine, requests: list[Request], **options: Any) -> KeepingSink:
    sink = KeepingSink()
    for made in generate(engine, requests, sampling=SAMPLING, sink=sink, **options):
        assert made.error is None, made.error
    return sink


def test_values_are_the_products_of_the_rows_that_the_hook_shows(
    engine_of: EngineOf,
    as_traced: Callable[[Engine, bool], AbstractContextManager[None]],
    subtests: pytest.Subtests,
) -> None:
    """Of several hooks, two of them at one place, with an edit before them, packed and traced."""
    engine = engine_of("tiny-qwen3")
    readouts = (
        readout(engine),
        readout(engine, seed=1, bias=0.0),
        readout(engine, hook="attn_out.1", seed=2),
        readout(engine, hook="final_norm", seed=3),
        readout(engine, hook="logits", seed=4),
    )
    hooks = tuple(dict.fromkeys(one.hook for one in readouts))
    edit = Edit(hook=HOOK, op="scale", coefficient=-1.5)
    long = " ".join(PROMPTS[:3] * 4)  # of several blocks
    capture = Capture(hooks=hooks, readouts=readouts)
    asked = [replace(one, capture=capture, edits=(edit,)) for one in requests_for(engine, [*PROMPTS, long])]
    for traced in (False, True):
        with as_traced(engine, traced), subtests.test(traced=traced):
            sink = run(engine, asked)
            for index, request in enumerate(asked):
                for one in readouts:
                    values, rows = sink.rows(index, one.name), sink.rows(index, one.hook)
                    assert values.dtype == torch.float32 and values.shape == (len(rows), 1)
                    whole = len(request.prompt_ids) + SAMPLING.max_tokens - 1
                    assert len(rows) == (SAMPLING.max_tokens if one.hook == "logits" else whole)
                    np.testing.assert_array_equal(values, due(rows, one).astype(np.float32))


def test_members_differ_in_one_thing_each(engine_of: EngineOf) -> None:
    engine = engine_of("tiny-qwen3")
    one = readout(engine)
    base = Capture(hooks=(), readouts=(one,))
    captures = {
        "as it is": base,
        "vector": replace(base, readouts=(readout(engine, seed=1),)),
        "bias": replace(base, readouts=(replace(one, bias=-3.0),)),
        "name": replace(base, readouts=(replace(one, name="readout:x"),)),
        "hook": replace(base, readouts=(readout(engine, hook="resid_post.0"),)),
        "two": replace(base, readouts=(one, readout(engine, seed=2))),
        "the other way round": replace(base, readouts=(readout(engine, seed=2), one)),
        "a hook besides": replace(base, hooks=("mlp_in.1",)),
        "positions": replace(base, positions="generated"),
        "last": replace(base, positions="last"),
        "prompt": replace(base, positions="prompt"),
        "none": None,
        "again": base,
    }
    asked = [
        replace(request, capture=capture)
        for request, capture in zip(requests_for(engine, PROMPTS * 3), captures.values(), strict=False)
    ]
    asked.append(replace(asked[0], rule=rule_for(asked[0].prompt_ids, [0, 3, -1, 20])))
    together = run(engine, asked, options=RunOptions(slots=5))
    for index, request in enumerate(asked):
        if request.capture is None:
            assert index not in together.chunks
            continue
        alone = run(engine, [request])
        assert together.chunks[index].keys() == alone.chunks[0].keys()
        for name, chunks in together.chunks[index].items():
            own = alone.chunks[0][name]
            assert [(c.tokens, c.first_row) for c in chunks] == [(c.tokens, c.first_row) for c in own]
            np.testing.assert_allclose(together.rows(index, name), alone.rows(0, name), atol=1e-4, rtol=1e-4)


def test_a_shared_prefix_is_read_once(engine_of: EngineOf) -> None:
    """The choices of one prompt, with hooks and readouts, whose blocks all of them share."""
    engine = engine_of("tiny-qwen3")
    readouts = (readout(engine), readout(engine, hook="resid_post.0", seed=1))
    capture = Capture(hooks=("resid_post.1", "resid_post.0"), readouts=readouts)
    (first,) = requests_for(engine, [" ".join(PROMPTS[:3] * 3)])
    asked = [replace(first, seed=seed, capture=capture) for seed in range(4)]
    sink = KeepingSink()
    generate(engine, asked[:1], sampling=SAMPLING)
    made = generate(engine, asked, sampling=SAMPLING, sink=sink)
    assert max(one.cached_tokens for one in made) >= 64
    for index in range(4):
        for one in readouts:
            expected = due(sink.rows(index, one.hook), one)
            np.testing.assert_array_equal(sink.rows(index, one.name), expected.astype(np.float32))


def test_values_can_repeat_bit_for_bit(engine_of: EngineOf) -> None:
    engine = engine_of("tiny-qwen3")
    capture = Capture(hooks=(), readouts=(readout(engine), readout(engine, hook="logits", seed=1)))
    asked = [replace(one, capture=capture) for one in requests_for(engine, PROMPTS)]
    options = RunOptions(repeatable=True)
    together = run(engine, asked, options=options)
    for index, request in enumerate(asked):
        alone = run(engine, [request], options=options)
        for name in together.chunks[index]:
            assert torch.equal(together.rows(index, name), alone.rows(0, name)), name


def test_a_vector_of_another_width_fails_its_request_alone(engine_of: EngineOf) -> None:
    engine = engine_of("tiny-qwen3")
    wrong = replace(readout(engine), hook="logits")
    asked = [
        replace(request, capture=Capture(hooks=(), readouts=(one,)))
        for request, one in zip(requests_for(engine, PROMPTS), (readout(engine), wrong), strict=False)
    ]
    fine, refused = generate(engine, asked, sampling=SAMPLING, sink=KeepingSink())
    assert fine.error is None
    assert "readout:0: the vector has 96 numbers, logits has 577 float32" in str(refused.error)
