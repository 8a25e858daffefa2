"""Passes of prompts and of single tokens, as they take turns on a GPU. Equality: `test_stream_members`."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.stream_run import StreamRun, ask, plan_of, prompts, stream_model
from worker.engine.capture.layouts import layouts_of
from worker.engine.locations import ModelHooks
from worker.engine.messages import Capture
from worker.engine.packed.forward import PackedForward
from worker.engine.pass_hooks import PassHooks
from worker.engine.slot import Slot
from worker.engine.stream import loop

PLAN = Capture(hooks=("resid_post.1",))


@pytest.fixture
def hooks(shared: Path) -> ModelHooks:
    return stream_model(shared, "llama")


class Passes:
    """Notes the passes of a forward: each request's key and tokens, and whether they are of its prompt."""

    def __init__(self) -> None:
        self.all: list[list[tuple[str, int, bool]]] = []

    def watch(self, forward: PackedForward) -> None:
        run = forward.run

        def noted(slots: Sequence[Slot], at_hooks: PassHooks) -> Tensor:
            self.all.append([(slot.key, slot.count, slot.prefills) for slot in slots])
            return run(slots, at_hooks)

        forward.run = noted  # type: ignore[method-assign]

    @property
    def kinds(self) -> str:
        """`p` for each pass of prompts, `t` of texts, `m` of both."""
        found = [{prefills for _, _, prefills in one} for one in self.all]
        return "".join("m" if len(kinds) > 1 else "p" if True in kinds else "t" for kinds in found)

    def of_prompts(self) -> list[list[tuple[str, int]]]:
        return [[(key, count) for key, count, prefills in one if prefills] for one in self.all]


def test_a_long_prompt_and_running_texts_take_turns(hooks: ModelHooks) -> None:
    items = [ask(f"r{i}", prompt, 30) for i, prompt in enumerate(prompts((21, 3)))]
    items.append(ask("long", prompts((400,), seed=2)[0], 4))
    for late in (False, True):
        passes = Passes()
        run = StreamRun(items, {"long": 3})
        run.run(hooks, late=late, apart=True, step_tokens=64, prepare=passes.watch)
        assert not run.errors and "m" not in passes.kinds
        reading = [i for i, one in enumerate(passes.of_prompts()) if one and one[0][0] == "long"]
        assert [sum(count for _, count in passes.of_prompts()[i]) for i in reading] == [64] * 6 + [16]
        # a pass of texts between any two of the long prompt
        assert [b - a for a, b in pairwise(reading)] == [2] * 6
        assert passes.kinds[reading[0] : reading[-1]] == "pt" * 6


def test_a_one_token_prompt_is_read_with_prompts(hooks: ModelHooks) -> None:
    items = [ask("text", (5, 6, 7), 9), ask("one", (8,), 3), ask("two", (9, 4), 3), ask("rest", (5,) * 65, 3)]
    passes = Passes()
    run = StreamRun(items, {"one": 2, "two": 2, "rest": 4})
    run.run(hooks, apart=True, step_tokens=64, prepare=passes.watch)
    assert "m" not in passes.kinds
    assert [("one", 1), ("two", 2)] in passes.of_prompts() and [("rest", 1)] in passes.of_prompts()


def test_a_chat_is_read_at_once_and_others_read_less_while_it_is_written(
    hooks: ModelHooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "STEP_TOKENS", 32)
    items = [ask("text", (5, 6, 7), 30), ask("long", prompts((400,))[0], 2)]
    items.append(ask("chat", (9, 8, 7), 4, priority=True))
    passes = Passes()
    StreamRun(items, {"long": 1, "chat": 3}).run(hooks, apart=True, step_tokens=100, prepare=passes.watch)
    chat = [i for i, one in enumerate(passes.all) if any(key == "chat" for key, *_ in one)]
    assert passes.all[chat[0]] == [("chat", 3, True)], "no other prompt"
    assert passes.kinds[chat[0] - 2 : chat[0] + 2] == "tppt", "and before the texts' next tokens"
    read = {i: one[0][1] for i, one in enumerate(passes.of_prompts()) if one and one[0][0] == "long"}
    beside = [count for i, count in read.items() if i - 1 in chat[1:]]
    assert len(beside) >= 2 and set(beside) == {32}, "each follows a token of the chat"
    assert {count for i, count in read.items() if i < chat[0] or i > chat[-1] + 1} >= {100}
    assert sum(read.values()) == 400


def test_an_endless_row_of_chats_holds_up_no_prompt(hooks: ModelHooks) -> None:
    """One of two chats always has prompt tokens left."""
    chats = [ask(f"c{i}", prompts((60,), seed=i)[0], 1, priority=True) for i in range(60)]
    item = ask("text", prompts((40,), seed=99)[0], 2)
    for apart in (False, True):
        passes = Passes()
        run = StreamRun([*chats, item])
        run.run(hooks, apart=apart, step_tokens=16, urgent=2, prepare=passes.watch)
        assert not run.errors
        read = [i for i, one in enumerate(passes.all) if any(key == "text" for key, *_ in one)]
        chat = [i for i, one in enumerate(passes.all) if any(key.startswith("c") for key, *_ in one)]
        assert read[-1] < chat[-1] / 2


def test_a_long_pass_is_shorter_if_blocks_of_rows_are_short(
    hooks: ModelHooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half as long until it fits, and no row of another request leaves early for it."""
    monkeypatch.setattr(loop, "STEP_TOKENS", 128)
    plan = plan_of(hooks)
    long, short = ask("long", prompts((440,))[0], 4, capture=plan), ask("short", (5, 6, 7), 40, capture=plan)
    whole, some = Passes(), Passes()
    due = StreamRun([short, long], {"long": 2}).run(hooks, apart=True, step_tokens=512, prepare=whole.watch)
    every, last = (layout.block_bytes for layout in layouts_of(hooks, plan))
    run = StreamRun([short, long], {"long": 2})
    run.run(hooks, apart=True, step_tokens=512, rows=6 * every + 2 * last, prepare=some.watch)
    assert [("long", 440)] in whole.of_prompts()
    assert [("long", 220)] in some.of_prompts()
    for key in ("long", "short"):
        assert run.made[key].error is None and run.ids(key) == due.ids(key)
        for hook in plan.hooks:
            assert run.tokens(key, hook) == due.tokens(key, hook)
            torch.testing.assert_close(run.rows(key, hook), due.rows(key, hook), atol=1e-4, rtol=1e-4)
