"""Both engines on one packed model: the tokens and rows of the plain one."""

from collections.abc import Callable

import pytest

from tests.support.streaming_runs import CONFIGS, Pair, assert_same, planned, prompts, requests_of
from worker.engine.streaming.packing import pack, probe

LENGTHS = [21, 3, 1, 40, 8]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_packed_model_runs_in_both_engines(name: str, pair_of: Callable[[str], Pair]) -> None:
    pair = pair_of(name)
    requests = requests_of(prompts(LENGTHS))
    plan = planned(pair.hooks, temperature=0.9)
    plain = [pair.trace(request, plan) for request in requests]
    model = pair.traced.model.hf
    reason = probe(model)
    if reason is not None:
        pytest.skip(reason)
    with pack(model) as packed:
        assert packed.layers
        desk, _ = pair.run(requests, plan, arrivals=[0, 0, 2, 3, 5])
        for request, wanted in zip(requests, plain, strict=True):
            assert_same(desk.kept[request.key], wanted)
            assert_same(pair.trace(request, plan), wanted)
    assert_same(pair.trace(requests[0], plan), plain[0])
