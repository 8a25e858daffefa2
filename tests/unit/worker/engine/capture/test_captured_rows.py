"""Captured rows equal those of a plain forward pass over the whole text."""

from pathlib import Path

import pytest
import torch

from actograph.contract.row_selection import Positions, Selection, Stride, TokenRange
from tests.support.plain_forward import plain_rows
from tests.support.stream_run import RANDOM, StreamRun, ask, plan_of, prompts, stream_model
from worker.engine.messages import Capture

POSITIONS: dict[str, Positions] = {
    "stride": Stride(stride=7),
    "range": TokenRange(start=3, stop=80),
    "endless range": TokenRange(start=70, stop=None),
    "tokens": [-1, 0, 5, 64, 90],
    "prompt": "prompt",
    "generated": "generated",
    "segments": ["think", "answer"],
    "beginning": "generated[2:9]",
    "end of the prompt": "prompt[-3:]",
}


@pytest.mark.parametrize("name", RANDOM)
def test_rows_of_every_hook_equal_a_plain_forward(shared: Path, name: str) -> None:
    """Mixed lengths, chunks, late arrivals, early shards, a forked beginning."""
    hooks = stream_model(shared, name)
    plan = plan_of(hooks)
    given = prompts((21, 1, 90, 130, 2, 65))
    given += [given[3][:128] + tail for tail in prompts((9, 1), seed=1)]
    items = [ask(f"r{i}", prompt, 20 - i, capture=plan) for i, prompt in enumerate(given)]
    run = StreamRun(items, {"r2": 3, "r4": 9, "r7": 20})
    run.run(hooks, most=4, step_tokens=48, shard_bytes=100_000)
    assert not run.errors and run.statistics.shared == 256 and run.writes > len(items)
    for item in items:
        ids = item.prompt_ids + run.ids(item.key)[:-1]
        for hook, due in plain_rows(hooks, ids, plan.hooks).items():
            first = len(item.prompt_ids) - 1 if hook == "logits" else 0
            assert run.tokens(item.key, hook) == list(range(first, len(ids))), (item.key, hook)
            got, rest = run.rows(item.key, hook), due[first:]
            if rest.is_floating_point():
                torch.testing.assert_close(got, rest, atol=1e-4, rtol=1e-4, msg=f"{item.key}: {hook}")
            else:
                assert torch.equal(got, rest), (item.key, hook)


def test_every_kind_of_position_keeps_the_tokens_of_the_contract(
    shared: Path, subtests: pytest.Subtests
) -> None:
    hooks = stream_model(shared, "llama")
    (prompt,) = prompts((75,))
    hook = "resid_post.1"
    items = [
        ask(key, prompt, 20, capture=Capture(hooks=(hook,)), keep=positions)
        for key, positions in POSITIONS.items()
    ]
    run = StreamRun(items).run(hooks, step_tokens=32)
    due = plain_rows(hooks, prompt + run.ids("tokens")[:-1], [hook])[hook]
    for item, positions in zip(items, POSITIONS.values(), strict=True):
        with subtests.test(positions=item.key):
            holds = Selection.of(positions, len(prompt)).follow()
            kept = [t for t in range(94) if holds(t, "prompt" if t < 75 else "answer")]
            assert run.tokens(item.key, hook) == kept
            torch.testing.assert_close(run.rows(item.key, hook), due[kept], atol=1e-4, rtol=1e-4)
