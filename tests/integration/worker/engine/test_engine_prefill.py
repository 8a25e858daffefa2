"""Prefill: choices of rows, steering, an early end, cancel and running out of memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from actograph.contract.errors import ContextLengthExceeded, InvalidRequest, OutOfDeviceMemory
from actograph.contract.specs import CaptureSpec, SamplingSpec
from tests.support.token_choosers import EveryKth, TheseTokens
from worker.engine.engine import Engine
from worker.engine.model.memory import LearnedLimit
from worker.engine.prefill import prefill
from worker.engine.requests import BufferOptions, Edit, GenerationRequest, RowShaping, StatisticsOptions

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
def test_choices_of_rows_work_as_in_generation(
    name: str, setting: Any, keeping_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, requests, hooks = setting
    shaping, expected = SHAPINGS[name]
    whole, chosen = keeping_sink(), keeping_sink()
    engine.prefill(requests, hooks=hooks, sink=whole)
    monkeypatch.setattr(prefill, "_LEAST_PIECE_BYTES", 2 * len(requests) * 512 * 4)
    options = BufferOptions(device_buffer_bytes=1)  # logits: two tokens at a time
    made = engine.prefill(requests, hooks=hooks, sink=chosen, shaping=shaping, options=options)
    assert [g.finish_reason for g in made] == ["stop"] * len(requests)
    for i in range(len(requests)):
        for hook in hooks:
            assert close(rows_of(chosen, i, hook), expected(rows_of(whole, i, hook))), hook


@pytest.mark.parametrize("positions", ["last", "last_prompt"])
def test_the_last_token_alone_needs_one_row_of_logits(
    positions: Any, setting: Any, keeping_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, requests, hooks = setting
    whole, last = keeping_sink(), keeping_sink()
    engine.prefill(requests, hooks=hooks, sink=whole)
    head = engine.model.hf.get_output_embeddings()
    forward, computed = head.forward, []

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        computed.append(hidden.shape[1])
        return forward(hidden)  # type: ignore[no-any-return]

    monkeypatch.setattr(head, "forward", counted)
    engine.prefill(requests, hooks=hooks, sink=last, positions=positions)
    assert computed == [1]
    for i, request in enumerate(requests):
        assert last.first_row(i, "logits") == last.first_row(i, "embed") == len(request.prompt_ids) - 1
        for hook in hooks:
            assert close(rows_of(last, i, hook), rows_of(whole, i, hook)[-1:])


def test_statistics_of_pieces_equal_those_of_one_piece(
    setting: Any, keeping_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, requests, hooks = setting
    shaping = RowShaping(statistics=StatisticsOptions(rows=False))
    one, pieces = keeping_sink(), keeping_sink()
    engine.prefill(requests, hooks=hooks, sink=one, shaping=shaping)
    monkeypatch.setattr(prefill, "_LEAST_PIECE_BYTES", 2 * len(requests) * 512 * 4)
    options = BufferOptions(device_buffer_bytes=1)
    engine.prefill(requests, hooks=hooks, sink=pieces, shaping=shaping, options=options)
    for i, request in enumerate(requests):
        assert one.chunks[i].keys() == pieces.chunks[i].keys()
        assert rows_of(pieces, i, "resid_post.1.count").item() == len(request.prompt_ids)
        for name in one.chunks[i]:
            got, want = rows_of(pieces, i, name), rows_of(one, i, name)
            assert torch.allclose(got.nan_to_num(7), want.nan_to_num(7), rtol=1e-4, atol=1e-4), name


def test_a_small_host_buffer_sends_rows_to_the_sink_while_the_model_runs(
    setting: Any, keeping_sink: Any
) -> None:
    engine, requests, hooks = setting
    want, got = keeping_sink(), keeping_sink()
    engine.prefill(requests, hooks=hooks, sink=want)
    seen: list[int] = []
    module = engine.model.hf.get_submodule("model.layers.2")
    handle = module.register_forward_pre_hook(lambda *_: seen.append(len(got.chunks.get(0, {}))))
    try:
        options = BufferOptions(host_buffer_bytes=1, queue_blocks=1)
        engine.prefill(requests, hooks=hooks, sink=got, options=options)
    finally:
        handle.remove()
    # all but what the queue, the writer and the buffer hold
    assert seen[0] >= len([h for h in hooks if h.endswith((".0", ".1"))]) - 4
    assert_same(got, want, range(len(requests)), hooks, {})


def test_edits_reach_everything_after_them_and_the_logits_piece_by_piece(
    setting: Any, keeping_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, requests, hooks = setting
    vector = torch.linspace(-1, 1, 32)
    steer = Edit(hook="resid_post.0", op="add", vector=vector, coefficient=2.0)
    erase = Edit(hook="logits", op="zero", chooser=TheseTokens((1, 4)))
    plain, steered, generated = keeping_sink(), keeping_sink(), keeping_sink()
    edited = [replace(requests[0], edits=(steer, erase)), *requests[1:]]
    engine.prefill(requests, hooks=hooks, sink=plain)
    monkeypatch.setattr(prefill, "_LEAST_PIECE_BYTES", 2 * len(requests) * 512 * 4)
    options = BufferOptions(device_buffer_bytes=1)
    engine.prefill(edited, hooks=hooks, sink=steered, options=options)
    got, was = rows_of(steered, 0, "resid_post.0"), rows_of(plain, 0, "resid_post.0")
    assert torch.allclose(got, was + 2 * vector, atol=1e-5)
    logits = rows_of(steered, 0, "logits")
    assert logits[[1, 4]].eq(0).all() and logits[[0, 2, 3, 5]].ne(0).any(1).all()
    for hook in hooks:
        assert close(rows_of(steered, 1, hook), rows_of(plain, 1, hook)), hook
    # as generation edits
    sampling = SamplingSpec(max_tokens=1)
    engine.generate(
        [replace(requests[0], edits=(steer,))], sampling=sampling, hooks=["final_norm"], sink=generated
    )
    assert torch.allclose(rows_of(generated, 0, "final_norm"), rows_of(steered, 0, "final_norm"), atol=1e-4)


def test_cancel_is_seen_between_hooks(setting: Any, keeping_sink: Any) -> None:
    engine, requests, hooks = setting
    reached: list[int] = []
    made = engine.prefill(
        requests,
        hooks=hooks,
        sink=keeping_sink(),
        should_stop=lambda: len(reached) == 2,
        on_step=reached.append,
    )
    assert [g.finish_reason for g in made] == ["cancelled"] * len(requests)
    assert reached == [0, 1]


def test_a_sample_that_cannot_be_stored_fails_alone_with_its_first_error(
    setting: Any, keeping_sink: Any
) -> None:
    engine, requests, hooks = setting
    sink = keeping_sink(fail=[1])
    made = engine.prefill(requests, hooks=hooks, sink=sink)
    assert [g.finish_reason for g in made] == ["stop", "error", "stop", "stop"]
    assert isinstance(made[1].error, OSError)
    assert 1 not in sink.chunks


def test_what_cannot_be_read_is_refused(setting: Any, keeping_sink: Any) -> None:
    engine, requests, hooks = setting
    too_long = replace(requests[0], prompt_ids=(5,) * 161)
    with pytest.raises(ContextLengthExceeded, match="161 tokens; the model's context is 160"):
        engine.prefill([too_long], hooks=hooks, sink=keeping_sink())
    with pytest.raises(InvalidRequest, match="generates nothing"):
        engine.prefill(requests, hooks=hooks, sink=keeping_sink(), positions="generated")
    whole = replace(requests[0], prompt_ids=(5,) * 160)
    assert engine.prefill([whole], hooks=["embed"], sink=keeping_sink())[0].finish_reason == "stop"


@contextmanager
def scarce(engine: Engine, refuses: Callable[[int, int], bool]) -> Iterator[list[int]]:
    """Let the last layer's MLP fail as an allocator fails: (batch, tokens) -> whether."""
    at: list[int] = []

    def before(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        batch, tokens = args[0].shape[:2]
        if refuses(batch, tokens):
            at.append(batch)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    handle = engine.model.hf.get_submodule("model.layers.2.mlp").register_forward_pre_hook(before)
    try:
        yield at
    finally:
        handle.remove()
        engine.prefill_limit = LearnedLimit()


def assert_same(
    got: Any, want: Any, indices: Sequence[int], hooks: Sequence[str], dropped: Mapping[int, Any]
) -> None:
    for i in indices:
        for hook in hooks:
            assert close(rows_of(got, i, hook), rows_of(want, i, hook)), hook
    assert not dropped.keys() & got.chunks.keys()


@pytest.mark.parametrize("most", [1, 2])
def test_batches_shrink_until_they_fit(setting: Any, keeping_sink: Any, most: int) -> None:
    engine, requests, hooks = setting
    want, got = keeping_sink(), keeping_sink()
    engine.prefill(requests, hooks=hooks, sink=want)
    with scarce(engine, lambda batch, _: batch > most) as at:
        made = engine.prefill(requests, hooks=hooks, sink=got)
        planned = engine.plan_prefill(hooks, CaptureSpec(), prompt_tokens=len(requests[0].prompt_ids))
        assert planned == most
    assert at == ([4] if most == 2 else [4, 2, 2])
    assert all(g.error is None for g in made)
    assert_same(got, want, range(4), hooks, {})


def test_a_lone_sample_that_does_not_fit_fails_with_the_numbers(setting: Any, keeping_sink: Any) -> None:
    engine, requests, hooks = setting
    want, got = keeping_sink(), keeping_sink()
    engine.prefill(requests, hooks=hooks, sink=want)
    longest = len(requests[0].prompt_ids)
    with scarce(engine, lambda _, tokens: tokens == longest) as at:
        made = engine.prefill(requests, hooks=hooks, sink=got)
    assert at == [4, 2, 1, 1]  # the last one with small buffers
    error = made[0].error
    assert isinstance(error, OutOfDeviceMemory) and f"{longest} tokens" in error.message
    assert error.as_record()["details"]["rss_bytes"] > 0
    assert [g.finish_reason for g in made] == ["error", "stop", "stop", "stop"]
    assert_same(got, want, (1, 2, 3), hooks, {0: None})


def test_what_the_head_takes_in_has_a_row_for_each_token(setting: Any, keeping_sink: Any) -> None:
    engine, requests, _ = setting
    for hooks in (["final_norm", "lm_head.input", "logits"], ["lm_head.input"]):
        sink = keeping_sink()
        engine.prefill(requests, hooks=["final_norm", *hooks], sink=sink)
        for i in range(len(requests)):
            assert torch.equal(rows_of(sink, i, "lm_head.input"), rows_of(sink, i, "final_norm"))
