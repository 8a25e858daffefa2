"""Rows that share a long beginning read it together; rows and tokens are those of a run alone."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.support.streaming_runs import Pair, assert_same, planned, prompts, requests_of
from worker.engine.requests import Edit, GenerationRequest
from worker.engine.streaming import pack

HOOKS = ("resid_post.0", "mlp_in.1")
(COMMON,) = prompts([40], seed=17)
TEXTS = [(*COMMON, *own) for own in prompts([5, 1, 9, 12, 3, 7], seed=18)]


@pytest.fixture(autouse=True)
def short_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "LEAST_TOKENS", 24)


def counted(pair: Pair, requests: list[GenerationRequest], temperature: float = 0.0) -> int:
    """Reads that were merged, after a check of every request against its run alone."""
    plan = planned(HOOKS, temperature=temperature, max_tokens=12)
    desk, statistics = pair.run(requests, plan, most=6, step_tokens=64, arrivals=[0, 0, 1, 2, 4, 9])
    for request in requests:
        assert_same(desk.kept[request.key], pair.trace(request, plan))
    return statistics.merged_reads


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "gpt_neox", "olmo", "qwen3_moe"])
def test_rows_with_a_common_beginning_read_it_together(name: str, pair_of: Callable[[str], Pair]) -> None:
    assert counted(pair_of(name), requests_of(TEXTS), temperature=0.8) >= 3 * 40


def test_layers_with_windows_and_soft_caps_read_each_row_alone(pair_of: Callable[[str], Pair]) -> None:
    counted(pair_of("gemma2"), requests_of(TEXTS))


def test_other_beginnings_and_too_few_rows_are_read_alone(pair: Pair) -> None:
    assert counted(pair, requests_of([*TEXTS[:3], *prompts([40, 41, 42], seed=3)])) == 0


def test_rows_with_other_edits_are_read_apart(pair: Pair) -> None:
    edit = Edit(hook="resid_post.0", op="add", vector=torch.linspace(-2, 2, 32), positions="prompt")
    plain = requests_of(TEXTS)
    some = [replace(r, edits=(edit,)) if i % 2 else r for i, r in enumerate(plain)]
    assert counted(pair, some) == 0
    last = replace(edit, positions="last_prompt")
    assert counted(pair, [replace(r, edits=(edit, last)) for r in plain]) >= 3 * 40
