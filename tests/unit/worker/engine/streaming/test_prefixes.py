"""Prompts that begin alike compute the beginning once; rows and tokens are those of a run alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.streaming_runs import Desk, Pair, assert_same, planned, prompts, requests_of
from worker.engine.requests import BufferOptions, Edit, GenerationRequest, RowShaping, StatisticsOptions
from worker.engine.runs import RunPlan, RunRequest, RunStatistics

HOOKS = ("resid_post.0", "mlp_in.1", "logits")
COMMON, LONG, SHORT = prompts([40, 25, 6], seed=7)
TEXTS = [(*COMMON, *own) for own in prompts([5, 1, 9, 12, 3], seed=8)]


def check(
    pair: Pair, requests: list[GenerationRequest], plan: RunPlan, **run: Any
) -> tuple[Desk, RunStatistics]:
    desk, counted = pair.run(requests, plan, **run)
    for request in requests:
        assert_same(desk.kept[request.key], pair.trace(request, plan))
    return desk, counted


@pytest.mark.parametrize("step_tokens", [16, 200])
@pytest.mark.parametrize("most", [2, 5])
def test_a_common_beginning_is_computed_once(most: int, step_tokens: int, pair: Pair) -> None:
    requests = requests_of(TEXTS)
    _, counted = check(pair, requests, planned(HOOKS), most=most, step_tokens=step_tokens)
    assert counted.shared_tokens >= 40 * (len(TEXTS) - 1)
    run = sum(len(text) for text in TEXTS) + counted.generated_tokens - len(TEXTS)
    assert counted.computed_tokens == run - counted.shared_tokens


def test_equal_prompts_share_all_but_the_last_token(pair: Pair) -> None:
    requests = requests_of([TEXTS[0]] * 4)
    _, counted = check(pair, requests, planned(HOOKS, temperature=0.8))
    assert counted.shared_tokens == 3 * (len(TEXTS[0]) - 1)


@pytest.mark.parametrize(
    "capture",
    [
        {"positions": "prompt"},
        {"positions": "generated"},
        {"positions": "last"},
        {"positions": "last_prompt"},
        {"dtype": "bfloat16"},
        {"shaping": RowShaping(columns=(3, 1, 8))},
        {"shaping": RowShaping(reduce="mean")},
        {"shaping": RowShaping(statistics=StatisticsOptions(threshold=0.5))},
    ],
    ids=str,
)
def test_rows_of_the_beginning_are_in_every_request(capture: dict[str, Any], pair: Pair) -> None:
    _, counted = check(pair, requests_of(TEXTS), planned(HOOKS, capture=capture))
    assert counted.shared_tokens > 0


def test_rows_are_held_when_their_place_is_too_small(pair: Pair) -> None:
    # a place holds 24 rows of 640 bytes, fewer than the common beginning has
    small = BufferOptions(host_buffer_bytes=17 * 24 * 640)
    desk, counted = check(pair, requests_of([*TEXTS, *TEXTS[:3]]), planned(HOOKS), most=14, options=small)
    assert len(desk.kept["s0"].chunks["resid_post.0"]) > 2
    assert counted.shared_tokens == 40 * 4 + sum(len(text) - 1 for text in TEXTS[:3])


def test_more_rows_than_may_be_held_are_computed_again(pair: Pair) -> None:
    # all places together hold 120 rows, so that 30 may be held beside them: the first chunk's 16
    small = BufferOptions(host_buffer_bytes=5 * 24 * 640)
    _, counted = check(pair, requests_of(TEXTS), planned(HOOKS), options=small)
    assert counted.shared_tokens == 2 * 16


def test_a_prefix_outlives_the_request_that_computed_it(pair: Pair) -> None:
    first, second, third = requests_of([TEXTS[0], TEXTS[2], TEXTS[3]], max_tokens=3)
    _, counted = check(pair, [first, second, third], planned(HOOKS), step_tokens=200, arrivals=[0, 0, 20])
    assert counted.shared_tokens == 40 * 2


def test_the_next_turn_of_a_dialogue_goes_on_in_the_slot_of_the_last(pair: Pair) -> None:
    first = GenerationRequest(key="turn 1", prompt_ids=LONG, seed=3)
    plan = planned(HOOKS, capture={"positions": "generated"})
    said = pair.trace(first, plan).generation.generated_ids
    second = GenerationRequest(key="turn 2", prompt_ids=(*LONG, *said, *SHORT), seed=4)
    desk = Desk([RunRequest(first), RunRequest(second)], arrivals=[0, 20])
    _, counted = pair.run([], plan, desk=desk, most=1)
    for request in (first, second):
        assert_same(desk.kept[request.key], pair.trace(request, plan))
    assert counted.shared_tokens == len(LONG) + len(said) - 1  # the last token was never run


def test_a_request_whose_source_leaves_computes_by_itself(pair: Pair) -> None:
    first, second = requests_of([TEXTS[0], TEXTS[2]], max_tokens=1)
    _, counted = check(pair, [first, second], planned(HOOKS), step_tokens=200, arrivals=[0, 1])
    assert counted.shared_tokens == 0  # the first one's rows have left before the second came
    _, counted = check(pair, [first, second], planned(), step_tokens=200, arrivals=[0, 1])
    assert counted.shared_tokens == 40  # keys and values are there still


def test_edits_share_with_equal_edits_alone(pair: Pair) -> None:
    vector = torch.ones(32)
    other = torch.full((32,), -1.0)
    edits = [
        Edit(hook="resid_post.0", op="add", vector=vector),
        Edit(hook="resid_post.0", op="add", vector=other),
        Edit(hook="resid_post.0", op="add", vector=vector, positions="last_prompt"),
        Edit(hook="resid_post.0", op="add", vector=vector, positions="generated"),
    ]
    requests = [
        GenerationRequest(key=f"{i} {turn}", prompt_ids=text, seed=1, edits=(edit,))
        for i, edit in enumerate(edits)
        for turn, text in enumerate((TEXTS[0], TEXTS[2]))
    ]
    _, counted = check(pair, requests, planned(HOOKS), most=8)
    assert counted.shared_tokens == 40 * len(edits)
    # the first one's last prompt token, which it edits, lies inside the second one's prompt
    longer = replace(requests[4], key="longer", prompt_ids=(*TEXTS[0], *SHORT))
    _, counted = check(pair, [requests[4], longer], planned(HOOKS))
    assert counted.shared_tokens == len(TEXTS[0]) - 1


def test_scored_prompts_are_read_whole(pair: Pair) -> None:
    requests = requests_of(TEXTS[:3], score_prompt=True, top_logprobs=2)
    _, counted = check(pair, requests, planned(HOOKS))
    assert counted.shared_tokens == 0
