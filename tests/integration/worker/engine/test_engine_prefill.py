"""Prefill: choices of rows, steering, an early end, cancel and running out of memory."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from actograph.contract.errors import ContextLengthExceeded
from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import generate, read_texts
from tests.support.token_choosers import EveryKth, TheseTokens
from worker.engine.engine import Engine
from worker.engine.requests import Edit, GenerationRequest, RowShaping

pytestmark = pytest.mark.integration

EngineOf = Callable[[str], Engine]
MODEL = "qwen3"  # three layers
PROMPTS = [
    "Tom has 34 books and Mia has 57 books. How many do they have in total?",
    "The cat",
    "a",
    "One day, a dog",
]


@pytest.fixture
def setting(engine_of: EngineOf, requests_for: Any) -> tuple[Engine, list[GenerationRequest], list[str]]:
    engine = engine_of(MODEL)
    return engine, requests_for(engine, PROMPTS), list(engine.structure.hooks)


def rows_of(sink: Any, index: int, hook: str) -> torch.Tensor:
    tensor: torch.Tensor = sink.rows(index, hook)
    return tensor


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-5, rtol=1e-5)


SHAPINGS: dict[str, tuple[RowShaping, Callable[[torch.Tensor], torch.Tensor]]] = {
    "stride": (RowShaping(chooser=EveryKth(3)), lambda x: x[::3]),
    "tokens": (RowShaping(chooser=TheseTokens((0, -1))), lambda x: x[sorted({0, len(x) - 1})]),
    "columns": (RowShaping(columns=(5, 2)), lambda x: x[:, [5, 2]]),
    "mean": (RowShaping(reduce="mean"), lambda x: x.mean(0, keepdim=True)),
    "last": (RowShaping(reduce="last"), lambda x: x[-1:]),
}


@pytest.mark.parametrize("name", SHAPINGS)
def test_choices_of_rows_work_as_in_generation(name: str, setting: Any, keeping_sink: Any) -> None:
    engine, requests, hooks = setting
    shaping, expected = SHAPINGS[name]
    whole, chosen = keeping_sink(), keeping_sink()
    read_texts(engine, requests, hooks=hooks, sink=whole)
    made = read_texts(engine, requests, hooks=hooks, sink=chosen, shaping=shaping)
    assert [g.finish_reason for g in made] == ["stop"] * len(requests)
    for i in range(len(requests)):
        for hook in hooks:
            assert close(rows_of(chosen, i, hook), expected(rows_of(whole, i, hook))), hook


@pytest.mark.parametrize("positions", ["last", "last_prompt"])
def test_the_last_token_alone_has_one_row(positions: Any, setting: Any, keeping_sink: Any) -> None:
    engine, requests, hooks = setting
    whole, last = keeping_sink(), keeping_sink()
    read_texts(engine, requests, hooks=hooks, sink=whole)
    read_texts(engine, requests, hooks=hooks, sink=last, positions=positions)
    for i, request in enumerate(requests):
        assert last.first_row(i, "logits") == last.first_row(i, "embed") == len(request.prompt_ids) - 1
        for hook in hooks:
            assert close(rows_of(last, i, hook), rows_of(whole, i, hook)[-1:])


def test_edits_reach_everything_after_them_and_the_logits_piece_by_piece(
    setting: Any, keeping_sink: Any
) -> None:
    engine, requests, hooks = setting
    vector = torch.linspace(-1, 1, 32)
    steer = Edit(hook="resid_post.0", op="add", vector=vector, coefficient=2.0)
    erase = Edit(hook="logits", op="zero", chooser=TheseTokens((1, 4)))
    plain, steered, generated = keeping_sink(), keeping_sink(), keeping_sink()
    edited = [replace(requests[0], edits=(steer, erase)), *requests[1:]]
    read_texts(engine, requests, hooks=hooks, sink=plain)
    read_texts(engine, edited, hooks=hooks, sink=steered)
    got, was = rows_of(steered, 0, "resid_post.0"), rows_of(plain, 0, "resid_post.0")
    assert torch.allclose(got, was + 2 * vector, atol=1e-5)
    logits = rows_of(steered, 0, "logits")
    assert logits[[1, 4]].eq(0).all() and logits[[0, 2, 3, 5]].ne(0).any(1).all()
    for hook in hooks:
        assert close(rows_of(steered, 1, hook), rows_of(plain, 1, hook)), hook
    # as generation edits
    sampling = SamplingSpec(max_tokens=1)
    generate(
        engine,
        [replace(requests[0], edits=(steer,))],
        sampling=sampling,
        hooks=["final_norm"],
        sink=generated,
    )
    assert torch.allclose(rows_of(generated, 0, "final_norm"), rows_of(steered, 0, "final_norm"), atol=1e-4)


def test_a_sample_that_cannot_be_stored_fails_alone_with_its_first_error(
    setting: Any, keeping_sink: Any
) -> None:
    engine, requests, hooks = setting
    sink = keeping_sink(fail=[1])
    made = read_texts(engine, requests, hooks=hooks, sink=sink)
    assert [g.finish_reason for g in made] == ["stop"] * 4
    assert isinstance(made[1].error, OSError)
    assert 1 not in sink.chunks


def test_what_cannot_be_read_is_refused(setting: Any, keeping_sink: Any) -> None:
    engine, requests, hooks = setting
    too_long = replace(requests[0], prompt_ids=(5,) * 161)
    (made,) = read_texts(engine, [too_long], hooks=hooks, sink=keeping_sink())
    assert isinstance(made.error, ContextLengthExceeded)
    assert "161 tokens; the model's context is 160" in made.error.message
    whole = replace(requests[0], prompt_ids=(5,) * 160)
    assert read_texts(engine, [whole], hooks=["embed"], sink=keeping_sink())[0].finish_reason == "stop"


def test_what_the_head_takes_in_has_a_row_for_each_token(setting: Any, keeping_sink: Any) -> None:
    engine, requests, _ = setting
    for hooks in (["final_norm", "lm_head.input", "logits"], ["lm_head.input"]):
        sink = keeping_sink()
        read_texts(engine, requests, hooks=["final_norm", *hooks], sink=sink)
        for i in range(len(requests)):
            assert torch.equal(rows_of(sink, i, "lm_head.input"), rows_of(sink, i, "final_norm"))
