"""Readouts in the pass that computes the rows: of every token, member by member, in both forwards."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from actograph.contract.interventions import vector_sha256
from actograph.contract.row_selection import TokenRange
from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import PROMPTS, KeepingSink, generate, requests_for
from tests.support.token_choosers import rule_for
from worker.engine.engine import Engine
from worker.engine.messages import (
    Capture,
    Edit,
    Readout,
    ReadoutLimit,
    Request,
    RunOptions,
    request_json,
    request_of,
    vectors_of,
)
from worker.engine.stream.loop import Loop

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


def at_token(values: torch.Tensor, prompt: int, wanted: int) -> tuple[int, float]:
    """A generated token from the place `wanted` on with a value that no generated one before it has.

    Returns: how many are generated before it, and a number between its value and the largest before.
    """
    own = values[prompt:, 0].double()
    for place in range(wanted, len(own)):
        before = own[:place].max().item() if place else own[place].item() - 1
        if own[place] > before:
            return place, (own[place].item() + before) / 2
    return len(own), own.max().item() + 1


@pytest.mark.parametrize("late", [False, True])
def test_a_request_ends_after_the_first_token_that_crosses(
    engine_of: EngineOf,
    as_traced: Callable[[Engine, bool], AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
    *,
    late: bool,
) -> None:
    """At every place, above and below, beside requests that go on; rows and log probabilities end there."""
    engine = engine_of("tiny-qwen3")
    one, other = readout(engine), readout(engine, seed=1)
    capture = Capture(hooks=(HOOK,), readouts=(other, one))
    down = replace(one, vector=-one.vector, bias=-one.bias, sha256="down")  # type: ignore[operator]
    below = replace(capture, readouts=(down, other))
    base = [
        replace(request, capture=capture, top_logprobs=2, rule=None)
        for request in requests_for(engine, PROMPTS[:4] * 2)
    ]
    monkeypatch.setattr("worker.engine.engine.Loop", partial(Loop, late=late))
    plain_sink = KeepingSink()
    plain = generate(engine, base, sampling=SAMPLING, sink=plain_sink)
    asked, due = list[Request](), list[int]()
    for index, request in enumerate(base):
        prompt = len(request.prompt_ids)
        place, number = at_token(plain_sink.rows(index, one.name), prompt, index)
        stop = ReadoutLimit(name=one.name, above=number)
        asked.append(replace(request, stops=(stop,)))
        due.append(place)
        if index % 2:  # the same from below
            asked[-1] = replace(request, capture=below, stops=(replace(stop, above=None, below=-number),))
    assert len({*due}) > 3 and min(due) == 0
    asked += [base[0], replace(base[1], stops=(ReadoutLimit(name=other.name, above=1e9),))]
    plain += plain[:2]
    due += [SAMPLING.max_tokens] * 2
    for traced in (False, True):
        with as_traced(engine, traced), subtests.test(traced=traced):
            sink = KeepingSink()
            made = generate(engine, asked, sampling=SAMPLING, sink=sink, options=RunOptions(slots=3))
            for index, (found, whole, place) in enumerate(zip(made, plain, due, strict=True)):
                assert found.error is None, found.error
                prompt, ends = len(whole.prompt_ids), place < SAMPLING.max_tokens - 1
                count = place + 2 if ends else SAMPLING.max_tokens  # the last one was never read
                assert found.finish_reason == ("readout" if ends else "length")
                assert found.generated_ids == whole.generated_ids[:count]
                assert found.logprobs is not None and len(found.logprobs) == count
                values = sink.rows(index, one.name)
                assert len(values) == len(sink.rows(index, HOOK)) == prompt + count - 1
                source = plain_sink.rows(
                    index % len(base) if index < len(base) else index - len(base), one.name
                )
                sign = -1 if index < len(base) and index % 2 else 1
                np.testing.assert_allclose(values * sign, source[: len(values)], atol=1e-4, rtol=1e-4)


def test_prompt_tokens_end_nothing(engine_of: EngineOf) -> None:
    """However large their values are; a readout of kept tokens alone judges these."""
    engine = engine_of("tiny-qwen3")
    one = readout(engine)
    capture = Capture(hooks=(), readouts=(one,))
    (request,) = requests_for(engine, PROMPTS[:1])
    sink = KeepingSink()
    (whole,) = generate(engine, [replace(request, capture=capture)], sampling=SAMPLING, sink=sink)
    values, prompt = sink.rows(0, one.name), len(request.prompt_ids)
    lifted = replace(one, bias=one.bias + 10_000)
    stop = ReadoutLimit(name=one.name, above=0.0)
    asked = replace(request, capture=replace(capture, readouts=(lifted,)), stops=(stop,))
    assert values.min() > -10_000
    cases = {
        "at once": (asked, 2),
        "the third kept one": (replace(asked, rule=rule_for(request.prompt_ids, [0, prompt + 3])), 5),
        "no kept one": (replace(asked, rule=rule_for(request.prompt_ids, [0, 1])), SAMPLING.max_tokens),
        "read alone": (replace(asked, max_tokens=0), 0),
    }
    for name, (one_asked, count) in cases.items():
        (found,) = generate(engine, [one_asked], sampling=SAMPLING, sink=KeepingSink())
        assert found.generated_ids == whole.generated_ids[:count], name


def test_a_request_crosses_to_the_engine_with_its_readouts(engine_of: EngineOf) -> None:
    engine = engine_of("tiny-qwen3")
    edit = Edit(hook=HOOK, op="add", vector=np.ones(3, np.float32))
    capture = Capture(hooks=(), readouts=(readout(engine), readout(engine, seed=1)))
    stops = (ReadoutLimit(name="readout:1", below=-2.0),)
    request = replace(requests_for(engine, PROMPTS)[0], capture=capture, edits=(edit,), stops=stops)
    sent = json.loads(json.dumps(request_json(request)))
    assert "vector" not in str(sent)
    found = request_of(sent, vectors_of(request))
    assert (found.capture, found.stops) == (capture, stops)
    for one, due in zip(vectors_of(found), vectors_of(request), strict=True):
        np.testing.assert_array_equal(one, due)


def test_a_stop_by_a_readout_that_is_not_captured_is_refused(engine_of: EngineOf) -> None:
    engine = engine_of("tiny-qwen3")
    stop = ReadoutLimit(name="readout:x", above=0.0)
    capture = Capture(hooks=(), readouts=(readout(engine),))
    asked = [replace(one, capture=capture, stops=(stop,)) for one in requests_for(engine, PROMPTS[:1])]
    (refused,) = generate(engine, asked, sampling=SAMPLING, sink=KeepingSink())
    assert "it captures no readout:x, which is to end it" in str(refused.error)


@pytest.mark.parametrize("late", [False, True])
def test_an_edit_begins_with_the_token_after_the_one_that_crosses(
    engine_of: EngineOf,
    as_traced: Callable[[Engine, bool], AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
    *,
    late: bool,
) -> None:
    """As an edit of the tokens from there on, at every place, with others that begin elsewhere or at once."""
    engine = engine_of("tiny-qwen3")
    one = readout(engine)
    capture = Capture(hooks=(HOOK,), readouts=(one,))
    long = " ".join(PROMPTS[:3] * 4)  # with a shared prefix, which the edit leaves alone
    base = [
        replace(request, capture=capture)
        for request in requests_for(engine, [*PROMPTS[:4], long, long, *PROMPTS[:2]])
    ]
    monkeypatch.setattr("worker.engine.engine.Loop", partial(Loop, late=late))
    sink = run(engine, base)
    edit = Edit(hook="resid_post.0", op="scale", coefficient=-1.5)
    always = Edit(hook="attn_out.0", op="scale", coefficient=1.01, positions="prompt")
    waiting, placed, begun = list[Request](), list[Request](), list[int]()
    for index, request in enumerate(base):
        prompt = len(request.prompt_ids)
        place, number = at_token(sink.rows(index, one.name), prompt, index)
        if index == 7:
            place, number = SAMPLING.max_tokens, 1e9
        limit = ReadoutLimit(name=one.name, above=number)
        begun.append(place)
        waiting.append(replace(request, edits=(replace(edit, after=limit),)))
        placed.append(
            replace(request, edits=(replace(edit, positions=TokenRange(start=prompt + place + 1)),))
        )
        if index == 6:
            waiting[-1] = replace(waiting[-1], edits=(*waiting[-1].edits, always))
            placed[-1] = replace(placed[-1], edits=(*placed[-1].edits, always))
    assert len({*begun}) > 3
    for traced in (False, True):
        with as_traced(engine, traced), subtests.test(traced=traced):
            sinks = KeepingSink(), KeepingSink()
            made, due = (
                generate(engine, asked, sampling=SAMPLING, sink=own, options=RunOptions(slots=3))
                for asked, own in zip((waiting, placed), sinks, strict=True)
            )
            changed = 0
            for index, (found, expected) in enumerate(zip(made, due, strict=True)):
                assert found.error is None, found.error
                assert found.generated_ids == expected.generated_ids
                for name in (HOOK, one.name):
                    values, rows = (own.rows(index, name) for own in sinks)
                    np.testing.assert_allclose(values, rows, atol=1e-3, rtol=1e-4)
                before = sink.rows(index, one.name)
                changed += len(rows) != len(before) or not np.allclose(rows, before, atol=1e-2)
            assert changed > 3
