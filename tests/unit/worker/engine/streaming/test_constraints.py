"""Constrained requests among free ones, in both engines."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from tests.support.streaming_runs import VOCABULARY, Pair, assert_same, planned, prompts, requests_of


@dataclass
class Multiples:
    """Allows multiples of `factor`, and after `steps` tokens only the end token."""

    factor: int
    steps: int
    failure: None = None
    calls: list[int] = field(default_factory=list)

    def mask(self, generated: Sequence[int]) -> torch.Tensor:
        self.calls.append(len(generated))
        allowed = torch.zeros(VOCABULARY + 3, dtype=torch.bool)  # tokenizers may know more tokens
        allowed[2 * self.factor :: self.factor] = True
        if len(generated) == self.steps:
            allowed[:] = False
            allowed[1] = True
        return allowed


@pytest.mark.parametrize("sampling", [{}, {"temperature": 3.0, "top_p": 0.9}, {"frequency_penalty": 1.0}])
def test_a_constrained_request_follows_its_constraint_beside_free_ones(
    sampling: dict[str, Any], pair: Pair
) -> None:
    free = requests_of(prompts([5, 3, 8, 2]), top_logprobs=2)
    rules = {1: Multiples(7, 4), 2: Multiples(5, 6)}
    mixed = [replace(r, constraint=rules[i]) if i in rules else r for i, r in enumerate(free)]
    plan = planned(**sampling)
    desk, _ = pair.run(mixed, plan, arrivals=[0, 0, 1, 4])
    for i, request in enumerate(mixed):
        kept = desk.kept[request.key]
        if i in rules:
            *ids, last = kept.generation.generated_ids
            assert last == 1 and len(ids) == rules[i].steps and kept.generation.finish_reason == "stop"
            assert all(token % rules[i].factor == 0 for token in ids)
            # once for each token, in order
            assert rules[i].calls == list(range(rules[i].steps + 1))
        again = replace(request, constraint=replace(rules[i], calls=[])) if i in rules else request
        assert_same(kept, pair.trace(again, plan))


def test_rows_of_a_traced_batch_keep_their_own_constraints(pair: Pair) -> None:
    requests = requests_of(prompts([5, 3, 8]))
    rules = [Multiples(7, 2), None, Multiples(5, 6)]
    mixed = [replace(r, constraint=rule) for r, rule in zip(requests, rules, strict=True)]
    plan = planned()
    made = pair.traced.generate(mixed, sampling=plan.sampling, hooks=())
    alone = [pair.trace(replace(r, constraint=None), plan).generation for r in requests]
    assert made[1].generated_ids == alone[1].generated_ids
    for generation, rule in ((made[0], rules[0]), (made[2], rules[2])):
        assert rule is not None and rule.calls == list(range(rule.steps + 1))
        assert [token % rule.factor for token in generation.generated_ids[:-1]] == [0] * rule.steps
