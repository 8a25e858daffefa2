"""A run: who starts when, what a failure costs, and how it ends."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actograph.contract.errors import ContextLengthExceeded, InterventionFailed, OutOfDeviceMemory
from actograph.contract.row_selection import Stride
from tests.support.plain_forward import plain_rows
from tests.support.stream_run import StreamRun, ask, prompts, stream_model
from tests.support.token_choosers import rule_for
from worker.engine.chosen_tokens import FollowedRule
from worker.engine.locations import ModelHooks
from worker.engine.messages import Capture, Edit, Request, TextEnd

HOOK = "resid_post.1"
PLAN = Capture(hooks=(HOOK,))


@pytest.fixture
def hooks(shared: Path) -> ModelHooks:
    return stream_model(shared, "llama")


@pytest.fixture(autouse=True, params=["at once", "late"])
def reads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the host reads the tokens of a pass before or after it launches the next one."""
    how: str = request.param
    monkeypatch.setattr(StreamRun, "late", how == "late")
    return how


def _good(count: int = 3) -> list[Request]:
    given = prompts((21, 3, 40, 70)[:count])
    return [ask(f"g{i}", prompt, 12, capture=PLAN) for i, prompt in enumerate(given)]


def _assert_good(hooks: ModelHooks, run: StreamRun, items: list[Request]) -> None:
    """Each has the tokens and rows of a plain forward pass."""
    for item in items:
        assert run.made[item.key].error is None
        ids = item.prompt_ids + run.ids(item.key)
        due = plain_rows(hooks, ids[:-1], [HOOK, "logits"])
        assert list(run.ids(item.key)) == due["logits"].argmax(-1)[len(item.prompt_ids) - 1 :].tolist()
        torch.testing.assert_close(run.rows(item.key, HOOK), due[HOOK], atol=1e-4, rtol=1e-4)


class _Boom(RuntimeError):
    pass


def _boom(*_: Any) -> Any:
    raise _Boom


def test_a_failure_of_one_request_ends_that_request_alone(
    hooks: ModelHooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, some = _good(), prompts((21,))[0]
    nan = np.full(32, np.nan, np.float32)
    follow, rule = FollowedRule.holds, rule_for(some, Stride(stride=2))

    def failing(self: FollowedRule, number: int) -> bool:
        """It raises at the third generated token."""
        return _boom() if number > 2 else follow(self, number)

    monkeypatch.setattr(FollowedRule, "holds", failing)

    def bad(key: str, **changes: Any) -> Request:
        return ask(key, some, 9, **({"capture": PLAN} | changes))

    items = [
        bad("rule", rule=rule),
        bad("edit's rule", edits=(Edit(hook=HOOK, op="zero", rule=rule),)),
        bad("stop", stop_at=TextEnd("(", "", 3)),
        bad("not numbers", edits=(Edit(hook=HOOK, op="add", vector=nan, positions="generated"),)),
        bad("no such hook", capture=Capture(hooks=("resid_post.99",))),
        bad("columns", capture=replace(PLAN, columns=999)),
        bad("sink"),
        bad("started"),
        ask("context", some, 10**6),
        ask("arena", prompts((400,))[0], 100),
        ask("no prompt", (), 3),
    ]
    run = StreamRun([good[0], *items, *good[1:]])
    run.on_write = lambda key: _boom() if key == "sink" else None
    run.on_start = lambda key: _boom() if key == "started" else None
    run.run(hooks, most=6, arena=450)
    assert set(run.errors) == {item.key for item in items}
    assert {key for key, error in run.errors.items() if isinstance(error, _Boom)} >= {"rule", "sink"}
    assert isinstance(run.errors["not numbers"], InterventionFailed)
    assert isinstance(run.errors["context"], ContextLengthExceeded)
    assert isinstance(run.errors["arena"], OutOfDeviceMemory)
    assert run.statistics.retries == 0  # none of them costs the others a pass
    _assert_good(hooks, run, good)


def test_a_pass_that_fails_is_halved_until_one_request_is_alone(hooks: ModelHooks) -> None:
    """Memory for 40 tokens of a pass, and one request that never fits."""

    def full(_: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs["input_ids"]
        if ids.shape[1] > 40 or bool((ids == 2).any()):
            raise torch.OutOfMemoryError("pretended")

    good = _good(4)
    run = StreamRun([*good, ask("heavy", (5, 2, 7), 4)])
    handle = hooks.model.hf.register_forward_pre_hook(full, with_kwargs=True)
    try:
        run.run(hooks, most=6, step_tokens=256)
    finally:
        handle.remove()
    assert {key: type(error) for key, error in run.errors.items()} == {"heavy": OutOfDeviceMemory}
    heavy = run.errors["heavy"]
    assert isinstance(heavy, OutOfDeviceMemory) and "3 tokens" in heavy.message
    assert heavy.as_record()["details"]["rss_bytes"] > 0
    assert run.statistics.retries > 2
    _assert_good(hooks, run, good)


@pytest.mark.parametrize("what", ["device", "results", "every pass", "control"])
def test_what_is_nobodys_fault_ends_the_run_with_a_result_for_all(hooks: ModelHooks, what: str) -> None:
    items = [ask(f"r{i}", prompt, 30, capture=PLAN) for i, prompt in enumerate(prompts((5,) * 20))]
    run = StreamRun(items)
    broken = torch.AcceleratorError("CUDA error: an illegal memory access") if what == "device" else _Boom()
    handle = None
    if what in ("device", "every pass"):

        def fail(*_: Any) -> None:
            if run.turn > 3:
                raise broken

        handle = hooks.model.hf.register_forward_pre_hook(fail)
    elif what == "results":
        run.on_done = lambda key: _boom() if key == "r0" else None
        run.drops.add("r0")
    else:
        run.on_beat = lambda: _boom() if run.turn > 3 else None
    try:
        with pytest.raises(type(broken)) as raised:
            run.run(hooks, most=12)
    finally:
        if handle is not None:
            handle.remove()
    pulled = {item.key for item in items} - {item.key for item in run.waiting} - {"r0"}
    assert run.made.keys() - {"r0"} == pulled
    if what != "results":
        assert {(made.finish_reason, made.error) for made in run.made.values()} == {
            ("cancelled", raised.value)
        }


@pytest.mark.parametrize("most", [1, 3, 12])
def test_requests_fail_for_their_passes_only_if_others_work(hooks: ModelHooks, most: int) -> None:
    """All requests go back if every pass fails; each has its own result if some passes work."""
    items = [ask(f"r{i}", (5 + i, 6), 4, capture=PLAN) for i in range(14)]

    def run(bad: set[int]) -> StreamRun:
        def fail(_: Any, args: Any, kwargs: Any) -> None:
            if bad & set(kwargs["input_ids"].flatten().tolist()):
                raise _Boom

        made = StreamRun(items)
        handle = hooks.model.hf.register_forward_pre_hook(fail, with_kwargs=True)
        try:
            made.run(hooks, most=most)
        except _Boom:
            assert all(one.finish_reason == "cancelled" for one in made.made.values())
        finally:
            handle.remove()
        return made

    every = run({6})
    assert every.errors.keys() == every.made.keys() and len(every.made) >= 9
    some = run({5, 7, 8, 5 + 13})
    assert set(some.errors) == {"r0", "r2", "r3", "r13"} and len(some.made) == len(items)
    assert {made.finish_reason for made in some.made.values()} == {"error", "length"}


def test_requests_are_dropped_and_late_ones_join_a_full_run(hooks: ModelHooks) -> None:
    long = [ask(f"l{i}", prompt, 60, capture=PLAN) for i, prompt in enumerate(prompts((5, 6, 7)))]
    chat = ask("chat", prompts((300,))[0], 3, priority=True)
    run = StreamRun([*long, chat, ask("never", (5,), 4)], {"chat": 10})

    def watch() -> None:
        if run.turn == 20:
            run.drops |= {"l1", "never"}

    run.on_beat = watch
    run.run(hooks, most=2, arena=440, spare=303, step_tokens=64)
    assert run.seen["chat"] == 10 and run.made["chat"].finish_reason == "length"
    assert run.seen["l2"] >= 20  # it waited for a place, and the chat did not
    dropped = run.made["l1"]
    assert dropped.finish_reason == "dropped" and dropped.error is None
    assert 10 < len(dropped.generated_ids) < 25
    assert len(run.rows("l1", HOOK)) == 6 + len(dropped.generated_ids) - 1
    assert run.made["never"].finish_reason == "dropped" and "never" not in run.seen
    assert len(run.ids("l0")) == len(run.ids("l2")) == 60


def test_a_stopped_run_cancels_what_has_not_ended(hooks: ModelHooks) -> None:
    run = StreamRun([ask("short", (3, 4), 2), *(ask(f"l{i}", (5, 6), 99) for i in range(4))])
    run.on_beat = lambda: setattr(run, "stop", run.turn > 5)
    run.run(hooks, most=3)
    reasons = {key: made.finish_reason for key, made in run.made.items()}
    assert reasons.pop("short") == "length"
    assert set(reasons.values()) == {"cancelled"} and not run.errors


def test_a_time_limit_counts_from_the_start_of_each_request(hooks: ModelHooks, reads: str) -> None:
    now = [0.0]
    items = [ask(f"r{i}", (5, 6), 40, time_limit=10.5, capture=PLAN) for i in range(2)]
    run = StreamRun([*items, ask("free", (5, 6), 40)], {"r1": 6})
    run.on_beat = lambda: now.__setitem__(0, now[0] + 1)
    run.run(hooks, clock=lambda: now[0])
    assert [run.made[key].finish_reason for key in ("r0", "r1", "free")] == ["timeout", "timeout", "length"]
    # a token that is read a turn later is read a second later
    assert len(run.ids("r0")) == len(run.ids("r1")) == (11 if reads == "late" else 12)
    assert len(run.rows("r1", HOOK)) == 2 + len(run.ids("r1")) - 1


def test_a_slow_sink_holds_the_run_up_and_its_heart_beats_meanwhile(hooks: ModelHooks) -> None:
    """Rows leave a block at a time, because the pool holds two."""
    plan = Capture(hooks=(HOOK, "mlp_in.0", "attn_out.0"))
    slow = ask("slow", prompts((300,))[0], 3, capture=plan)
    run = StreamRun([slow])
    beats: list[int] = []
    run.on_write = lambda key: run.wait_for_beats(2, beats)
    run.run(hooks, rows=2 * 64 * 3 * 32 * 4)
    assert run.statistics.waits > 3 and run.writes > 2 and sum(beats) >= 2 * (run.writes - 1)
    assert run.tokens("slow", HOOK) == list(range(302))


def test_a_request_whose_rows_have_no_room_fails_and_holds_nobody_up(hooks: ModelHooks) -> None:
    block = 64 * 32 * 4
    wide = Capture(hooks=(HOOK, "resid_post.0", "mlp_in.0"))
    run = StreamRun([ask("wide", (5, 6), 3, capture=wide), *_good()]).run(hooks, rows=2 * block)
    assert {key: type(error) for key, error in run.errors.items()} == {"wide": OutOfDeviceMemory}
    _assert_good(hooks, run, _good())


def test_rows_that_the_sink_holds_take_of_the_same_memory(hooks: ModelHooks) -> None:
    """With blocks for many, two requests at once; one that alone needs more is refused."""
    row = 32 * 4
    items = [replace(one, capture=replace(PLAN, held_rows=100)) for one in _good(4)]
    wide = ask("wide", (5, 6), 3, capture=replace(PLAN, held_rows=500))
    run = StreamRun([*items, wide])
    most = 0

    def count() -> None:
        nonlocal most
        most = max(most, run.running())

    run.on_beat = count
    run.run(hooks, rows=(2 * (64 + 100) + 70) * row, step_tokens=64)
    assert {key: type(error) for key, error in run.errors.items()} == {"wide": OutOfDeviceMemory}
    assert most == 2
    _assert_good(hooks, run, items)


def test_neither_arena_nor_pool_with_little_room_blocks_forks(
    hooks: ModelHooks, subtests: pytest.Subtests
) -> None:
    """A prefix that does not fit beside its forks is given up."""
    (head,) = prompts((150,))
    items = [ask(f"f{i}", head + p, 10, capture=PLAN) for i, p in enumerate(prompts((5, 70, 1, 9), seed=4))]
    block = 64 * 32 * 4
    for arena, blocks in ((240, 99), (300, 99), (400, 3), (400, 2), (800, 4), (4000, 99)):
        with subtests.test(arena=arena, blocks=blocks):
            run = StreamRun(items).run(hooks, most=4, step_tokens=64, arena=arena, rows=block * blocks)
            assert not run.errors
            _assert_good(hooks, run, items)
    assert run.statistics.shared == 4 * 128


def test_a_run_without_requests_ends_at_once(hooks: ModelHooks) -> None:
    assert StreamRun([]).run(hooks).statistics.passes == 0


CHECKPOINTS: list[dict[str, Any]] = [
    {"suppress_tokens": list(range(3, 500))},
    {"begin_suppress_tokens": list(range(3, 480))},
    {"bad_words_ids": [[token] for token in range(3, 400)]},
    {"repetition_penalty": 1.8},
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 4},
]


@pytest.mark.parametrize("config", CHECKPOINTS, ids=lambda config: next(iter(config)))
def test_a_checkpoint_that_changes_the_choice_of_tokens_does_so_here(
    hooks: ModelHooks, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hf: Any = hooks.model.hf
    for name, value in config.items():
        monkeypatch.setattr(hf.generation_config, name, value)
    items = _good()
    run = StreamRun(items).run(hooks)
    for item in items:
        ids = torch.tensor([item.prompt_ids])
        due = hf.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        assert list(run.ids(item.key)) == due[0, len(item.prompt_ids) :].tolist()
