"""The streaming engine against a plain forward of transformers and against the traced engine.

The plain forward is one pass over prompt and continuation, without cache, padding or nnsight.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.streaming_runs import CONFIGS, Kept, Pair, assert_same, planned, prompts, requests_of
from worker.engine.locations import place_of
from worker.engine.streaming.verification import verify

PairOf = Callable[[str], Pair]
LENGTHS = [21, 3, 1, 40, 8, 17, 2]
#: the third and later requests arrive in mid-run, at different steps
ARRIVALS = [0, 0, 2, 3, 5, 11, 30]


def _keeper(hook: str, location: str, into: dict[str, torch.Tensor]) -> Callable[..., None]:
    place = place_of(location)

    def keep(_: Any, args: Any, kwargs: Any, output: Any) -> None:
        value = output if place.side == "output" else [*args, *kwargs.values()][0]
        value = value[place.part] if isinstance(value, tuple) else value
        into[hook] = (value[0] if value.ndim > 2 else value).flatten(1).clone()

    return keep


def plain(pair: Pair, kept: Kept) -> dict[str, torch.Tensor]:
    """Rows of every hook and the logits, from one forward over all tokens that were run."""
    hf: Any = pair.traced.model.hf
    got: dict[str, torch.Tensor] = {}
    handles = []
    for hook, info in pair.traced.structure.hooks.items():
        module = hf.get_submodule(place_of(info.location).path)
        handles.append(module.register_forward_hook(_keeper(hook, info.location, got), with_kwargs=True))
    ids = torch.tensor([kept.generation.prompt_ids + kept.generation.generated_ids[:-1]])
    try:
        with torch.inference_mode():
            got["logits of the model"] = hf(input_ids=ids, use_cache=False).logits[0]
    finally:
        for handle in handles:
            handle.remove()
    return got


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_and_rows_are_those_of_a_plain_forward_and_of_the_traced_engine(
    name: str, pair_of: PairOf
) -> None:
    pair = pair_of(name)
    requests = requests_of(prompts(LENGTHS))
    plan = planned(pair.hooks)
    desk, counted = pair.run(requests, plan, arrivals=ARRIVALS)
    assert counted.shared_tokens == 0 and counted.steps > len(LENGTHS)
    for request in requests:
        kept = desk.kept[request.key]
        assert_same(kept, pair.trace(request, plan))
        whole, prompt = plain(pair, kept), len(request.prompt_ids)
        likeliest = whole.pop("logits of the model")[prompt - 1 :].argmax(-1)
        assert tuple(likeliest.tolist()) == kept.generation.generated_ids
        for hook in pair.hooks:
            start = prompt - 1 if hook == "logits" else 0
            rows, due = kept.rows(hook), whole[hook][start:]
            if hook.startswith("expert_indices"):
                rows, due = rows.sort(-1).values, due.sort(-1).values
            torch.testing.assert_close(rows, due, atol=1e-4, rtol=1e-4, msg=hook)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_verification_accepts_it(name: str, pair_of: PairOf) -> None:
    engine, reason = verify(pair_of(name).traced.hooks)
    assert engine is not None and reason == ""


@pytest.mark.parametrize("step_tokens", [1, 7, 16, 500])
def test_prompts_may_be_cut_into_chunks_of_any_size(step_tokens: int, pair: Pair) -> None:
    requests = requests_of(prompts([50, 33, 5]))
    plan = planned(pair.hooks)
    desk, _ = pair.run(requests, plan, step_tokens=step_tokens)
    for request in requests:
        assert_same(desk.kept[request.key], pair.trace(request, plan))


def test_a_long_prompt_stalls_nobody_for_more_than_a_chunk(pair: Pair) -> None:
    short, long = requests_of(prompts([4, 120]), max_tokens=20)
    desk, _ = pair.run([short, long], planned(), step_tokens=17, arrivals=[0, 3])
    reading = [s["s0"] for s in desk.lengths if s.get("s1") == 0]
    assert len(reading) > 5
    assert reading == list(range(reading[0], reading[0] + len(reading)))  # a token in every step


def test_a_place_is_filled_again_at_the_next_step(pair: Pair) -> None:
    requests = requests_of(prompts([5] * 6), max_tokens=4)
    desk, counted = pair.run(requests, planned(), most=2)
    # two at a time, four steps each, and the next pair begins in the step after
    assert counted.steps == 12
    assert len(desk.kept) == 6
