"""What ends a run and its requests, and requests with plans of their own beside each other."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from actograph.contract.errors import ContextLengthExceeded, InvalidRequest, UnknownHook
from actograph.contract.specs import SamplingSpec
from tests.support.streaming_runs import Desk, Pair, assert_same, planned, prompts, requests_of
from worker.engine.model import memory
from worker.engine.requests import BufferOptions, GenerationRequest, TextEnd
from worker.engine.runs import CapturePlan, RunPlan, RunRequest

HOOKS = ("resid_post.0", "mlp_in.1", "logits")


def test_every_request_may_have_its_own_plan(pair: Pair) -> None:
    plans: list[RunPlan | None] = [
        None,
        planned(("attn_out.1",), temperature=0.8, top_p=0.9),
        planned(temperature=1.0, top_k=5, presence_penalty=1.5, frequency_penalty=0.5),
        planned(HOOKS, capture={"positions": "generated", "dtype": "bfloat16"}, max_tokens=4),
        planned(logit_bias={7: 50.0}),
    ]
    default = planned(HOOKS)
    requests = requests_of(prompts([9, 5, 12, 7, 30]))
    desk, _ = pair.run([RunRequest(r, p) for r, p in zip(requests, plans, strict=True)], default)
    for request, plan in zip(requests, plans, strict=True):
        assert_same(desk.kept[request.key], pair.trace(request, plan or default))
    assert set(desk.kept["s4"].generation.generated_ids) == {7}


def test_a_guest_joins_the_running_batch_at_the_next_step(pair: Pair) -> None:
    first, second, chat = requests_of(prompts([5, 30, 12]), max_tokens=40)
    chat = replace(chat, key="chat", max_tokens=6)
    guest = RunRequest(chat, planned(("resid_post.1",), temperature=0.8))
    desk, _ = pair.run([first, second, guest], planned(HOOKS), arrivals=[0, 0, 5], step_tokens=50)
    tokens = [step.get("chat", 0) for step in desk.lengths]
    assert tokens[:12] == [0] * 5 + [1, 2, 3, 4, 5, 6, 6]
    assert_same(desk.kept["chat"], pair.trace(guest.request, guest.plan or planned()))
    assert_same(desk.kept["s0"], pair.trace(first, planned(HOOKS)))


def test_more_guests_than_their_places_wait_for_each_other(pair: Pair) -> None:
    requests = requests_of(prompts([5] * 12))
    guest = planned(("resid_post.1",))
    desk, _ = pair.run([RunRequest(r, guest) for r in requests], planned(HOOKS), most=10)
    for request in requests:
        assert_same(desk.kept[request.key], pair.trace(request, guest))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_log_probabilities_and_scored_prompts(temperature: float, pair: Pair) -> None:
    requests = requests_of(prompts([30, 1, 2, 19]), top_logprobs=3, score_prompt=True)
    requests[2] = replace(requests[2], top_logprobs=None)
    requests[3] = replace(requests[3], score_prompt=False, top_logprobs=0)
    plan = planned(HOOKS, temperature=temperature)
    desk, _ = pair.run(requests, plan, step_tokens=11)
    for request in requests:
        assert_same(desk.kept[request.key], pair.trace(request, plan))


def test_a_request_ends_at_its_own_stop(pair: Pair) -> None:
    first, second, third = requests_of(prompts([6, 6, 6]), max_tokens=20)
    (alone,) = pair.run([first], planned())[0].kept.values()
    ids = alone.generation.generated_ids
    word = f"<{ids[4]}>"
    expected = ids.index(ids[4]) + 1
    stopping = RunRequest(first, planned(stop=[word]))
    ending = RunRequest(replace(second, stop_at=_end_of(pair, second, 3)))
    desk, _ = pair.run([stopping, ending, third], planned())
    assert desk.kept["s0"].generation.generated_ids == ids[:expected]
    assert [desk.kept[key].generation.finish_reason for key in ("s0", "s1", "s2")] == [
        "stop",
        "stop",
        "length",
    ]
    assert_same(desk.kept["s0"], pair.trace(first, planned(stop=[word])))


def _end_of(pair: Pair, request: GenerationRequest, token: int) -> TextEnd:
    (alone,) = pair.run([request], planned())[0].kept.values()
    word = f"<{alone.generation.generated_ids[token]}>"
    return TextEnd(re.compile(re.escape(word) + "$"), word[-1], 4)


def test_an_end_token_ends_a_request(pair: Pair) -> None:
    (request,) = requests_of(prompts([6]))
    desk, _ = pair.run([request], planned(logit_bias={1: 100.0}))
    made = desk.kept["s0"].generation
    assert (made.generated_ids, made.finish_reason) == ((1,), "stop")


def test_a_stopped_run_cancels_what_runs_and_what_waits(pair: Pair) -> None:
    requests = requests_of(prompts([5] * 4), max_tokens=10)
    desk = Desk([RunRequest(r) for r in requests])
    desk.stop_after = 4
    pair.run([], planned(HOOKS), most=2, desk=desk)
    ends = [desk.kept[key].generation.finish_reason for key in ("s0", "s1")]
    assert ends == ["cancelled"] * 2
    assert len(desk.kept["s0"].generation.generated_ids) == 4
    assert desk.kept["s0"].chunks == {}
    assert "s2" not in desk.kept and not desk.exhausted  # never pulled


def test_one_request_is_dropped_and_the_others_go_on(pair: Pair) -> None:
    class Dropping(Desk):
        def should_drop(self, key: str) -> bool:
            return key == "s1" and self.steps >= 3

    requests = requests_of(prompts([5, 6, 7]))
    desk = Dropping([RunRequest(r) for r in requests])
    plan = planned(HOOKS)
    pair.run([], plan, desk=desk, step_tokens=50)
    made = desk.kept["s1"].generation
    assert (made.finish_reason, len(made.generated_ids)) == ("dropped", 4)
    assert desk.kept["s1"].rows("resid_post.0").shape[0] == 6 + 3
    for request in (requests[0], requests[2]):
        assert_same(desk.kept[request.key], pair.trace(request, plan))


def test_a_request_may_be_dropped_before_its_first_token(pair: Pair) -> None:
    class Dropping(Desk):
        def should_drop(self, key: str) -> bool:
            return key != "s0" and self.steps >= 2

    reading, waiting = requests_of(prompts([100, 100]), max_tokens=5)[0], requests_of(prompts([5, 6, 7]))
    long = replace(reading, key="long")
    desk = Dropping([RunRequest(r) for r in (waiting[0], long, waiting[1])])
    pair.run([], planned(HOOKS), desk=desk, most=2)
    for key in ("long", "s1"):
        assert (desk.kept[key].generation.finish_reason, desk.kept[key].generation.generated_ids) == (
            "dropped",
            (),
        )
    assert_same(desk.kept["s0"], pair.trace(waiting[0], planned(HOOKS)))


def test_a_time_limit_is_of_one_request(pair: Pair) -> None:
    first, second = requests_of(prompts([5, 6]), max_tokens=30)
    desk, _ = pair.run(
        [RunRequest(first, RunPlan(sampling=SamplingSpec(), time_limit=0.0)), second], planned()
    )
    assert desk.kept["s0"].generation.finish_reason == "timeout"
    assert desk.kept["s1"].generation.finish_reason == "length"


def test_a_request_at_fault_ends_alone(pair: Pair) -> None:
    good, beyond, empty, long, lost = requests_of(prompts([5, 5, 5, 150, 5]))
    faulty: list[Any] = [
        replace(beyond, prompt_ids=(1000,)),
        replace(empty, prompt_ids=()),
        replace(long, max_tokens=50),
        RunRequest(lost, planned(("resid_post.9",))),
    ]
    desk, _ = pair.run([good, *faulty], planned(HOOKS))
    errors = [type(desk.kept[f"s{i}"].generation.error) for i in range(1, 5)]
    assert errors == [InvalidRequest, InvalidRequest, ContextLengthExceeded, UnknownHook]
    assert_same(desk.kept["s0"], pair.trace(good, planned(HOOKS)))


def test_a_full_store_fails_its_request_alone(pair: Pair) -> None:
    requests = requests_of(prompts([5, 6, 7]))
    desk = Desk([RunRequest(r) for r in requests])
    desk.failing = {"s1"}
    pair.run([], planned(HOOKS), desk=desk)
    assert isinstance(desk.kept["s1"].generation.error, OSError)
    assert len(desk.kept["s1"].generation.generated_ids) == 9
    assert desk.kept["s0"].generation.error is None and desk.kept["s2"].generation.error is None


def test_an_error_of_the_results_ends_the_run(pair: Pair) -> None:
    class Broken(Desk):
        def done(self, request: GenerationRequest, generation: Any) -> None:
            raise RuntimeError("nobody takes results")

    with pytest.raises(RuntimeError, match="nobody takes results"):
        pair.run([], planned(), desk=Broken([RunRequest(r) for r in requests_of(prompts([5] * 6))]))
    desk, _ = pair.run(requests_of(prompts([5])), planned(HOOKS))  # the engine is as before
    assert desk.kept["s0"].generation.error is None


def test_out_of_memory_runs_everything_again_with_fewer(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = requests_of(prompts([5, 9, 13, 8]))
    plan = planned(HOOKS)
    hf = pair.traced.model.hf
    calls = 0

    def fail(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise torch.OutOfMemoryError("no memory left")

    handle = hf.register_forward_pre_hook(fail)
    try:
        desk, _ = pair.run(requests, plan, most=4)
    finally:
        handle.remove()
    assert sorted(desk.resets) == ["s0", "s1", "s2", "s3"]
    for request in requests:
        assert_same(desk.kept[request.key], pair.trace(request, plan))


def test_a_request_that_does_not_fit_alone_fails(pair: Pair) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory left")

    handle = pair.traced.model.hf.register_forward_pre_hook(fail)
    try:
        desk, _ = pair.run(requests_of(prompts([5, 6])), planned(HOOKS))
    finally:
        handle.remove()
    assert all(isinstance(kept.generation.error, torch.OutOfMemoryError) for kept in desk.kept.values())
    assert len(desk.kept) == 2


def test_a_longer_request_makes_the_slots_larger(pair: Pair) -> None:
    requests = requests_of(prompts([5, 6, 100]))
    plan = planned(HOOKS)
    desk, _ = pair.run(requests, plan, arrivals=[0, 0, 3])
    for request in requests:
        assert_same(desk.kept[request.key], pair.trace(request, plan))


def test_a_request_that_needs_the_memory_of_all_is_not_overtaken(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 384 bytes per token: three slots of 64 tokens, or one of 192
    monkeypatch.setattr(memory, "available_bytes", lambda _: 2 * 3 * 64 * 384)
    requests = requests_of(prompts([5, 9, 140, 6, 7]))
    plan = planned(HOOKS)
    desk, _ = pair.run(requests, plan, most=3, arrivals=[0, 0, 2, 3, 3], step_tokens=64)
    assert list(desk.live) == ["s0", "s1", "s2", "s3", "s4"]
    for request in requests:
        assert_same(desk.kept[request.key], pair.trace(request, plan))


def test_capture_needs_a_sink(pair: Pair) -> None:
    desk = Desk([])
    with pytest.raises(ValueError, match="capture needs a sink"):
        pair.streaming.run(planned(HOOKS), source=desk, results=desk, control=desk)


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (3, 1, 4, 0, 2)])
def test_sampled_tokens_depend_on_neither_batch_nor_order_nor_engine(
    most: int, order: Sequence[int], pair: Pair
) -> None:
    requests = requests_of(prompts([12, 3, 25, 7, 16]))
    for plan in (
        planned(temperature=0.8),
        planned(temperature=1.0, top_k=20, top_p=0.95),
        planned(temperature=0.7, top_p=0.9),
    ):
        desk, _ = pair.run([requests[i] for i in order], plan, most=most, step_tokens=9)
        for request in requests:
            assert_same(desk.kept[request.key], pair.trace(request, plan))


def test_rows_leave_in_shards_so_that_memory_does_not_grow(pair: Pair) -> None:
    requests = requests_of(prompts([30, 4]), max_tokens=60)
    plan = RunPlan(sampling=SamplingSpec(), capture=CapturePlan(hooks=HOOKS))
    desk, _ = pair.run(requests, plan, options=BufferOptions(host_buffer_bytes=1 << 16))
    assert len(desk.kept["s0"].chunks["resid_post.0"]) > 3
    for request in requests:
        assert_same(desk.kept[request.key], pair.trace(request, plan))
