"""Interventions in packed steps, beside requests without any, against the traced engine."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from actograph.contract.errors import InterventionFailed
from actograph.contract.interventions import TokenRange
from tests.support.streaming_runs import Pair, assert_same, planned, prompts, requests_of
from worker.engine.requests import Edit, GenerationRequest

HOOKS = ("resid_pre.1", "attn_out.1", "resid_post.1", "resid_post.2", "logits")
WIDTH = 32
PairOf = Callable[[str], Pair]


def vector(seed: int, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(width, generator=torch.Generator().manual_seed(seed))


class OddTokens:
    """Odd tokens of the prompt, and generated tokens with an odd id."""

    def of_prompt(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        return range(1, len(prompt_ids), 2)

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        return lambda token, token_id: token_id % 2 == 1


EDITS: dict[str, tuple[Edit, ...]] = {
    "add": (Edit(hook="resid_post.1", op="add", vector=vector(1), coefficient=2.0),),
    "scale": (Edit(hook="attn_out.1", op="scale", coefficient=0.5),),
    "zero": (Edit(hook="mlp_out.0", op="zero"),),
    "replace": (Edit(hook="resid_post.0", op="replace", vector=vector(2), positions="last_prompt"),),
    "project out": (Edit(hook="resid_post.1", op="project_out", vector=vector(3)),),
    "generated": (Edit(hook="resid_mid.1", op="add", vector=vector(4), positions="generated"),),
    "prompt": (Edit(hook="resid_pre.0", op="add", vector=vector(5), positions="prompt"),),
    "range": (Edit(hook="resid_post.1", op="add", vector=vector(6), positions=TokenRange(start=3, stop=14)),),
    "open range": (Edit(hook="resid_post.1", op="scale", coefficient=3.0, positions=TokenRange(start=9)),),
    "chooser": (Edit(hook="resid_post.1", op="add", vector=vector(7), chooser=OddTokens()),),
    "two at one hook": (
        Edit(hook="resid_post.1", op="add", vector=vector(8)),
        Edit(hook="resid_post.1", op="scale", coefficient=-1.0, positions="generated"),
    ),
    "at the head": (Edit(hook="logits", op="add", vector=vector(9, 96), positions="generated"),),
    "nothing": (Edit(hook="resid_post.1", op="add", vector=vector(1), coefficient=0.0),),
    "none": (),
}


def test_every_row_has_its_own_edits(pair: Pair) -> None:
    texts = prompts([11, 5, 20, 1, 7, 13, 4, 17, 9, 6, 12, 3, 8, 10])
    requests = [
        GenerationRequest(key=name, prompt_ids=ids, seed=3, edits=edits)
        for (name, edits), ids in zip(EDITS.items(), texts, strict=True)
    ]
    plan = planned(HOOKS)
    desk, _ = pair.run(requests, plan, most=5)
    for request in requests:
        assert_same(desk.kept[request.key], pair.trace(request, plan))
    unchanged = pair.trace(GenerationRequest(key="", prompt_ids=texts[0], seed=3), plan)
    assert not torch.equal(desk.kept["add"].rows("resid_post.1")[:1], unchanged.rows("resid_post.1")[:1])


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "gemma2", "qwen3_moe"])
def test_edits_of_other_architectures(name: str, pair_of: PairOf) -> None:
    pair = pair_of(name)
    hooks = tuple(hook for hook in HOOKS if hook in pair.hooks)
    edits = [EDITS[kind] for kind in ("add", "zero", "project out", "chooser", "two at one hook")]
    requests = [
        GenerationRequest(key=str(i), prompt_ids=ids, seed=i, edits=own)
        for i, (ids, own) in enumerate(zip(prompts([11, 5, 20, 1, 7]), edits, strict=True))
    ]
    plan = planned(hooks)
    desk, _ = pair.run(requests, plan)
    for request in requests:
        assert_same(desk.kept[request.key], pair.trace(request, plan))


def test_scored_prompts_are_edited_at_the_head(pair: Pair) -> None:
    edits = (Edit(hook="logits", op="scale", coefficient=0.5),)
    requests = requests_of(prompts([19, 4]), edits=edits, score_prompt=True, top_logprobs=2)
    plan = planned(("resid_post.1",))
    desk, _ = pair.run(requests, plan, step_tokens=7)
    for request in requests:
        assert_same(desk.kept[request.key], pair.trace(request, plan))


def test_values_that_are_not_numbers_fail_their_request_alone(pair: Pair) -> None:
    huge = Edit(hook="resid_post.1", op="scale", coefficient=3e38, positions="generated")
    edited, other = requests_of(prompts([6, 7]))
    bad = GenerationRequest(key="bad", prompt_ids=edited.prompt_ids, seed=1, edits=(huge, huge))
    desk, _ = pair.run([bad, other], planned())
    error: Any = desk.kept["bad"].generation.error
    assert isinstance(error, InterventionFailed)
    assert str(error) == str(pair.trace(bad, planned()).generation.error)
    assert_same(desk.kept["s1"], pair.trace(other, planned()))
