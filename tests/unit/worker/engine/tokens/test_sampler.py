"""The sampler: a row's token is its own, whatever stands beside it, in any order and number."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from actograph.contract.errors import InvalidRequest
from actograph.contract.specs import SamplingSpec
from worker.engine.tokens import sampling
from worker.engine.tokens.sampler import ChosenToken, RuledOut, SampledRow, Sampler

VOCAB = 3000
#: one for each way of choosing, and for each change of logits
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 1.3},
    "top-p": {"temperature": 0.8, "top_p": 0.95},
    "flat top-p": {"temperature": 50.0, "top_p": 0.9},
    "top-k": {"temperature": 1.0, "top_k": 20, "top_p": 0.9},
    "other top-k": {"temperature": 1.0, "top_k": 700},
    "large top-k": {"temperature": 9.0, "top_k": 2000},
    "min-p": {"temperature": 1.0, "min_p": 0.05},
    "min-p and top-p": {"temperature": 1.1, "min_p": 0.01, "top_p": 0.99},
    "bias": {"logit_bias": {"7": 4.0, "2999": -3.0}},
    "presence": {"presence_penalty": 1.5, "temperature": 0.7},
    "frequency": {"frequency_penalty": 0.8},
    "repetition": {"repetition_penalty": 1.4, "temperature": 0.5, "top_p": 0.9},
    "least tokens": {"min_tokens": 5, "stop_token_ids": [3], "logit_bias": {"3": 40.0, "1": 30.0}},
}
STEPS = 8


class _Request:
    def __init__(self, sampler: Sampler, name: str, number: int, top: int | None) -> None:
        prompt = [(number * 31 + i * i) % VOCAB for i in range(5 + number)]
        spec = SamplingSpec(**WAYS[name])
        self.slot = sampler.open(spec, seed=number, prompt=prompt, most=STEPS, ends=[1], top_logprobs=top)
        self.number, self.generated, self.half = number, list[int](), True

    @property
    def row(self) -> SampledRow:
        return SampledRow(self.slot, len(self.generated), self.generated[-1] if self.generated else -1)

    @property
    def unread(self) -> SampledRow:
        """The same, if the host has not read its newest token."""
        return self.row._replace(newest=None) if self.generated else self.row

    def logits(self) -> torch.Tensor:
        """The logits of its next token; in half precision many are equal."""
        generator = torch.Generator().manual_seed(1000 * self.number + len(self.generated))
        made = torch.randn(VOCAB, generator=generator) * 3
        return made.bfloat16() if self.half else made


def _all(sampler: Sampler) -> list[_Request]:
    return [_Request(sampler, name, i, (None, 0, 4)[i % 3]) for i, name in enumerate(WAYS)]


def _run(
    arranged: Callable[[list[_Request]], Sequence[Sequence[_Request]]], *, half: bool = True
) -> list[list[ChosenToken]]:
    """The tokens of each request, if each step's passes are arranged so."""
    sampler = Sampler(torch.device("cpu"), VOCAB)
    requests = _all(sampler)
    for one in requests:
        one.half = half
    chosen: list[list[ChosenToken]] = [[] for _ in requests]
    for _ in range(STEPS):
        for some in arranged(requests):
            logits = torch.stack([one.logits() for one in some])
            made = sampler.choose(logits, [one.row for one in some]).read()
            for one, token in zip(some, made, strict=True):
                chosen[one.number].append(token)
        for one, tokens in zip(requests, chosen, strict=True):
            one.generated.append(tokens[-1].token)
    return chosen


def test_tokens_are_the_same_for_any_batch_order_and_neighbours(subtests: pytest.Subtests) -> None:
    alone = _run(lambda requests: [[one] for one in requests])
    dice = random.Random(1)
    arranged: dict[str, Callable[[list[_Request]], Sequence[Sequence[_Request]]]] = {
        "together": lambda requests: [requests],
        "in another order each time": lambda requests: [dice.sample(requests, len(requests))],
        "in halves": lambda requests: [requests[::2], requests[1::2]],
    }
    for name, arrangement in arranged.items():
        with subtests.test(name):
            assert [[one.token for one in made] for made in _run(arrangement)] == [
                [one.token for one in made] for made in alone
            ]
    with subtests.test("log probabilities are those before bias and penalties"):
        request = _Request(Sampler(torch.device("cpu"), VOCAB), "bias", list(WAYS).index("bias"), 4)
        due = request.logits().float().log_softmax(-1)
        for i, name in enumerate(WAYS):
            tops = [one.logprobs for one in alone[i]]
            assert [None if one is None else len(one.top) for one in tops] == [(None, 0, 4)[i % 3]] * STEPS
            if name == "bias" and (first := tops[0]) is not None:
                assert first.logprob == pytest.approx(float(due[first.token_id]))
    with subtests.test("no end before the least number of tokens"):
        tokens = [one.token for one in alone[list(WAYS).index("least tokens")]]
        assert {1, 3}.isdisjoint(tokens[:5]) and set(tokens[5:]) == {3}


def test_a_gpu_chooses_by_calls_of_its_own_and_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def together(requests: list[_Request]) -> Sequence[Sequence[_Request]]:
        return [requests]

    due = _run(together, half=False)
    monkeypatch.setattr(sampling, "reads_freely", lambda _: False)
    assert _run(together, half=False) == due
    alone = _run(lambda requests: [[one] for one in requests])
    assert [[one.token for one in made] for made in _run(together)] == [
        [one.token for one in made] for made in alone
    ]


def test_tokens_that_the_host_has_not_read_count_too() -> None:
    """Some rows, or all of them, take their newest token from where the last pass has left it."""
    due = _run(lambda requests: [requests])
    for some in (1, 2):
        sampler = Sampler(torch.device("cpu"), VOCAB)
        requests = _all(sampler)
        for step in range(STEPS):
            logits = torch.stack([one.logits() for one in requests])
            rows = [one.row if i % some else one.unread for i, one in enumerate(requests)]
            made = sampler.choose(logits, rows).read()
            assert made == [tokens[step] for tokens in due], (some, step)
            for one, token in zip(requests, made, strict=True):
                one.generated.append(token.token)


def test_a_pass_that_is_run_again_chooses_the_same_and_leaves_the_logits(subtests: pytest.Subtests) -> None:
    sampler = Sampler(torch.device("cpu"), VOCAB)
    requests = _all(sampler)
    for step in range(4):
        logits = torch.stack([one.logits() for one in requests]).float()
        before, rows = logits.clone(), [one.row for one in requests]
        first, second = (sampler.choose(logits, rows).read() for _ in range(2))
        with subtests.test(step=step):
            assert first == second
            assert torch.equal(logits, before)
        for one, token in zip(requests, first, strict=True):
            one.generated.append(token.token)


def test_a_slot_begins_anew_and_tables_grow() -> None:
    sampler = Sampler(torch.device("cpu"), VOCAB)
    spec = SamplingSpec(temperature=0.7, presence_penalty=2.0, repetition_penalty=1.5)
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0)) * 3

    def generation(prompt: Sequence[int], many: int) -> list[int]:
        slot = sampler.open(spec, seed=3, prompt=prompt, most=many)
        tokens = list[int]()
        for step in range(many):
            row = SampledRow(slot, step, tokens[-1] if tokens else -1)
            tokens.append(sampler.choose(logits, [row]).read()[0].token)
        sampler.close(slot)
        return tokens

    first = generation([1, 2, 3], 9)
    generation(range(500), 150)  # in the same slot, and a longer one than its table had room for
    others = [sampler.open(spec, prompt=[5], most=4) for _ in range(40)]
    assert generation([1, 2, 3], 9) == first
    assert len({other.adjusted for other in others}) == 40


def test_logits_that_are_not_numbers_end_their_row_alone(subtests: pytest.Subtests) -> None:
    sampler = Sampler(torch.device("cpu"), VOCAB)
    requests = _all(sampler)
    rows = [one.row for one in requests]
    logits = torch.stack([one.logits() for one in requests])
    due = sampler.choose(logits, rows).read()
    for bad in range(len(rows)):
        spoilt = logits.clone()
        spoilt[bad, 17] = torch.nan
        with subtests.test(list(WAYS)[bad]):
            made = sampler.choose(spoilt, rows).read()
            assert made[bad] == ChosenToken(-1)
            assert made[:bad] + made[bad + 1 :] == due[:bad] + due[bad + 1 :]
    plain = [SampledRow(sampler.open(SamplingSpec()), 0, -1)] * 2
    spoilt = torch.tensor([[1.0, 2.0], [torch.nan, 3.0]])
    assert [one.token for one in sampler.choose(spoilt, plain).read()] == [1, -1]


def test_ruled_out_tokens_are_never_chosen() -> None:
    sampler = Sampler(torch.device("cpu"), VOCAB)
    requests = _all(sampler)
    rows = [one.row for one in requests]
    logits = torch.stack([one.logits() for one in requests])
    hidden = torch.ones(2, VOCAB, dtype=torch.bool)
    hidden[0, 5] = hidden[1, 2000:] = False
    made = sampler.choose(logits, rows, ruled_out=RuledOut([0, 3], hidden)).read()
    assert made[0].token == 5 and made[3].token >= 2000
    others = [i for i in range(len(rows)) if i not in (0, 3)]
    due = sampler.choose(logits, rows).read()
    assert [made[i] for i in others] == [due[i] for i in others]


def test_tokens_that_the_model_does_not_have_reach_no_other_row() -> None:
    sampler = Sampler(torch.device("cpu"), VOCAB)
    with pytest.raises(InvalidRequest, match="logit_bias names token 3000; this model"):
        sampler.open(SamplingSpec(logit_bias={VOCAB: 9.0}))
    early = sampler.open(SamplingSpec(min_tokens=3, stop_token_ids=[VOCAB + 7]), ends=[VOCAB, 1], most=4)
    logits = torch.zeros(2, VOCAB)
    logits[:, [0, 1, 7]] = torch.tensor([1.0, 3.0, 2.0])
    made = sampler.choose(
        logits, [SampledRow(early, 0, -1), SampledRow(sampler.open(SamplingSpec()), 0, -1)]
    ).read()
    assert [one.token for one in made] == [7, 1]
