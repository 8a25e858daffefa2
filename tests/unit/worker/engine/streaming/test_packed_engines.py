"""Both engines on one packed model: the tokens and rows of the plain one."""

from collections.abc import Callable

import pytest
import torch

from actograph.settings import PackWeights
from tests.support.streaming_runs import CONFIGS, Pair, assert_same, build, planned, prompts, requests_of
from worker.engine.model import memory
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


def test_an_engine_packs_its_weights_after_verification_and_says_so() -> None:
    engine = build(CONFIGS["llama"](), "llama")
    reason = probe(engine.model.hf)
    if reason is not None:
        pytest.skip(reason)
    engine.pack_weights()
    assert engine.structure.streaming is True
    assert engine.structure.packing_refusal is None
    assert engine.structure.packed_bytes is not None
    engine.pack_weights()
    assert engine.structure.packing_refusal is None


@pytest.mark.parametrize(
    ("choice", "dtype", "reason"),
    [("never", torch.float32, "the settings say never"), ("auto", torch.bfloat16, "only float32 gains")],
)
def test_an_engine_says_why_its_weights_are_not_packed(
    choice: PackWeights, dtype: torch.dtype, reason: str
) -> None:
    engine = build(CONFIGS["llama"](), "llama", dtype)
    engine.pack_weights(choice)
    assert engine.structure.packed_bytes is None
    assert engine.structure.packing_refusal is not None
    assert reason in engine.structure.packing_refusal


def test_weights_are_not_packed_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build(CONFIGS["llama"](), "llama")
    assert engine.streaming() is not None
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1000)
    engine.pack_weights()
    assert engine.structure.packed_bytes is None
    assert "half of the free 1,000" in (engine.structure.packing_refusal or "")


def test_texts_are_read_and_scored_on_a_packed_model_as_on_a_plain_one() -> None:
    engine = build(CONFIGS["llama"](), "llama")
    requests = requests_of(prompts([9, 4]), score_prompt=True, top_logprobs=0)
    plain = engine.score(requests)
    engine.pack_weights()
    if engine.structure.packing_refusal is not None:
        pytest.skip(engine.structure.packing_refusal)
    assert engine.model.device == torch.device("cpu")
    for one, other in zip(plain, engine.score(requests), strict=True):
        expected = [known.logprob for known in (one.prompt_logprobs or ())[1:] if known]
        got = [known.logprob for known in (other.prompt_logprobs or ())[1:] if known]
        assert got == pytest.approx(expected, abs=1e-4)
