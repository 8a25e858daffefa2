"""Slots and memory of requests are given back, whatever fails while they are given."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from actograph.contract.errors import CaptureFailed
from tests.support.plain_forward import plain_rows
from tests.support.stream_run import StreamRun, ask, plan_of, prompts, stream_model
from worker.engine.capture.pool import Pool
from worker.engine.capture.record import Record
from worker.engine.locations import ModelHooks
from worker.engine.messages import Capture, Request, StatisticsOptions
from worker.engine.packed.forward import PackedForward
from worker.sample.open_job import as_error

HOOK = "resid_post.1"


@pytest.fixture
def hooks(shared: Path) -> ModelHooks:
    return stream_model(shared, "llama")


def _forks(plan: Capture, count: int = 4, **changes: Any) -> list[Request]:
    """Requests whose prompts begin with the same 64 tokens and more."""
    (head,) = prompts((90,))
    tails = prompts(range(1, count + 1), seed=3)
    return [ask(f"f{i}", head + tail, 4, capture=plan, **changes) for i, tail in enumerate(tails)]


def test_prompts_with_a_shared_prefix_capture_points_of_the_last_tokens(
    hooks: ModelHooks, subtests: pytest.Subtests
) -> None:
    """The head's input and output have no rows in a prefix, alone and beside other points."""
    for names in (("logits",), ("lm_head.input",), ("lm_head.output", "logits"), ("logits", HOOK)):
        for positions in ("all", "prompt", "generated", "last", "last_prompt"):
            for shaping in ({}, {"reduce": "mean"}):
                plan = Capture(hooks=names, positions=positions, **shaping)
                with subtests.test(hooks=names, positions=positions, **shaping):
                    items = _forks(plan)
                    run = StreamRun(items).run(hooks)
                    assert not run.errors
                    assert run.statistics.shared == (4 * 64 if not shaping else 0)
                    for item in items if not shaping else ():
                        due = plain_rows(hooks, (item.prompt_ids + run.ids(item.key))[:-1], names)
                        for hook in names:
                            tokens = run.tokens(item.key, hook)
                            torch.testing.assert_close(
                                run.rows(item.key, hook), due[hook][tokens], atol=1e-4, rtol=1e-4
                            )


def _failing(real: Callable[..., Any], call: int) -> Callable[..., Any]:
    """`real`, whose call of this number fails."""
    calls = [0]

    def failing(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise MemoryError
        return real(*args)

    return failing


@pytest.mark.parametrize("call", [1, 2, 4])
@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (PackedForward, "place"),
        (PackedForward, "fork"),
        (Record, "begin_with"),
        (Record, "reserve"),
        (Pool, "open"),
        (Pool, "take"),
        (Pool, "reserve"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_fails_while_a_slot_is_given_costs_no_memory(
    hooks: ModelHooks, monkeypatch: pytest.MonkeyPatch, *, owner: Any, method: str, call: int
) -> None:
    """Requests of several plans, whose rows have several layouts."""
    opened: list[PackedForward] = []
    every = plan_of(hooks)
    statistics = Capture(hooks=(HOOK,), statistics=StatisticsOptions())
    items = [*_forks(every), ask("b", (5, 6, 7), 4, capture=statistics), ask("c", (5, 6), 4)]
    due = StreamRun(items).run(hooks)
    monkeypatch.setattr(owner, method, _failing(getattr(owner, method), call))
    run = StreamRun(items).run(hooks, prepare=opened.append, most=3)  # asserts that all rows went back
    assert len(run.made) == len(items)
    for key, made in run.made.items():
        if made.error is None:
            assert made.generated_ids == due.ids(key)
    assert opened[0].arena.free == opened[0].arena.tokens


def test_every_failed_sample_has_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    for error in (StopIteration(), MemoryError(), RuntimeError(""), KeyError("x"), AssertionError()):
        reason = as_error(error)
        assert isinstance(reason, CaptureFailed)
        assert (
            reason.message.startswith(f"{type(error).__name__}: ")
            and "see the worker's log" in reason.message
        )
        assert f"{type(error).__name__}: ;" not in reason.message
        assert type(error).__name__ in caplog.text
    assert as_error(CaptureFailed()).args[0]
