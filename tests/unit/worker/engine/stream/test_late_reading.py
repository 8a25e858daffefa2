"""The host one pass late: what comes first, and what of a pass does not count. Equality: the other tests."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from actograph.contract.row_selection import Stride
from actograph.contract.specs import SamplingSpec
from tests.support.stream_run import StreamRun, ask, plan_of, prompts, stream_model
from worker.engine.locations import ModelHooks
from worker.engine.messages import Capture, Edit, Request, TextEnd
from worker.engine.packed.registration import layer_shapes
from worker.engine.tokens.sampler import Choice

HOOK = "resid_post.1"


@pytest.fixture
def hooks(shared: Path) -> ModelHooks:
    made = stream_model(shared, "llama")
    layer_shapes(made.model)  # measured by a forward of its own, once for each model
    return made


def _order(hooks: ModelHooks, item: Request, patch: pytest.MonkeyPatch) -> str:
    """Steps of the host in a run: `L` launches a pass, `r` reads the tokens of one."""
    seen, real = list[str](), Choice.read
    with patch.context() as own:
        own.setattr(Choice, "read", lambda self: (seen.append("r"), real(self))[1])
        handle = hooks.model.hf.register_forward_pre_hook(lambda *_: seen.append("L"))
        try:
            run = StreamRun([item]).run(hooks, late=True)
        finally:
            handle.remove()
    assert not run.errors and len(run.ids(item.key)) == 4
    return "".join(seen)


def test_a_pass_is_launched_before_the_tokens_of_the_last_one_are_read(
    hooks: ModelHooks, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    (prompt,) = prompts((5,))
    late: dict[str, dict[str, Any]] = {
        "plain": {},
        "rows": {"capture": plan_of(hooks)},
        "sampled": {"sampling": SamplingSpec(temperature=1.0, frequency_penalty=0.5), "top_logprobs": 2},
        "edited": {"edits": (Edit(hook=HOOK, op="scale", coefficient=0.5),)},
        "stop strings": {"sampling": SamplingSpec(stop=["never"])},
        "ends of the text": {"stop_at": TextEnd("never", "r", 9)},
    }
    waits: dict[str, dict[str, Any]] = {
        "rows by a rule": {"capture": Capture(hooks=(HOOK,)), "keep": Stride(stride=2)},
        "the newest row": {"capture": Capture(hooks=(HOOK,), positions="last")},
        "a grammar": {"grammar": "start: /[a-z ]{0,99}/"},
    }
    for cases, due in ((late, "LLrLrLrr"), (waits, "LrLrLrLr")):
        for name, changes in cases.items():
            with subtests.test(name):
                given = ask("a", prompt, 4, **changes)
                assert _order(hooks, given, monkeypatch) == due
    with subtests.test("a checkpoint's own processors"), monkeypatch.context() as own:
        config: Any = hooks.model.hf.generation_config
        own.setattr(config, "repetition_penalty", 1.5)
        assert _order(hooks, ask("a", prompt, 4), monkeypatch) == "LrLrLrLr"


def test_what_runs_of_a_request_that_has_ended_does_not_count(hooks: ModelHooks) -> None:
    """The token that ends it is read when one more has run: no row, no token and no count of that one."""
    (prompt,) = prompts((5,))
    free = StreamRun([ask("a", prompt, 9)]).run(hooks).ids("a")
    end = next(token for i, token in enumerate(free) if i > 1 and token not in free[:i])
    stopped = free.index(end) + 1
    assert stopped < 9
    sampling = SamplingSpec(stop_token_ids=[end])
    item = ask("a", prompt, 9, sampling=sampling, capture=plan_of(hooks), top_logprobs=1)
    at_once, late = (StreamRun([item]).run(hooks, late=late) for late in (False, True))
    assert late.statistics.passes == at_once.statistics.passes + 1
    assert late.made == at_once.made and late.ids("a") == free[:stopped]
    for count in ("computed", "generated", "rows"):
        assert getattr(late.statistics, count) == getattr(at_once.statistics, count)
    for hook in at_once.chunks["a"]:
        assert late.tokens("a", hook) == at_once.tokens("a", hook)
        assert torch.equal(late.rows("a", hook), at_once.rows("a", hook))


def test_a_pass_that_fails_after_an_unread_one_loses_nothing(
    hooks: ModelHooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens are read first; those that end requests leave the pass."""
    monkeypatch.setattr(gc, "collect", lambda: 0)
    given = prompts((5, 9, 3))
    items = [ask(f"r{i}", prompt, 4 + 3 * i, capture=plan_of(hooks)) for i, prompt in enumerate(given)]
    due = StreamRun(items).run(hooks)
    for at in range(1, 10):
        calls = [0]

        def fail(*_: Any, at: int = at, calls: list[int] = calls) -> None:
            calls[0] += 1
            if calls[0] == at:
                raise torch.OutOfMemoryError("pretended")

        run = StreamRun(items)
        handle = hooks.model.hf.get_output_embeddings().register_forward_hook(fail)  # type: ignore[operator]
        try:
            run.run(hooks, late=True)
        finally:
            handle.remove()
        assert not run.errors and run.statistics.retries == 1
        for item in items:
            assert run.made[item.key].generated_ids == due.ids(item.key)
            for hook in due.chunks[item.key]:
                assert run.tokens(item.key, hook) == due.tokens(item.key, hook)
                torch.testing.assert_close(run.rows(item.key, hook), due.rows(item.key, hook))
