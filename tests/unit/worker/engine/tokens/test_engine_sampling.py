"""The draw itself: its distribution, and what it may and may not depend on."""

import math

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from actograph.contract.specs import SamplingSpec
from worker.engine.tokens.sampling import Warps, candidates, draw, gumbel, look_of, mix64, uniform, within


def warps(rows: int, vocabulary: int, spec: SamplingSpec) -> Warps:
    """One sampling for all rows."""

    def column(value: float | int) -> torch.Tensor:
        return torch.tensor(value).expand(rows, 1)

    top_k = None if spec.top_k is None else min(spec.top_k, vocabulary)
    look = look_of(top_k, spec.top_p, vocabulary)
    return Warps(
        look,
        column(spec.temperature),
        column(spec.top_p if spec.top_p < 1 else math.inf),
        column(top_k or vocabulary),
        column(math.log(spec.min_p)) if spec.min_p else None,
        top_k or 0,
    )


def kept(logits: torch.Tensor, spec: SamplingSpec) -> tuple[torch.Tensor, torch.Tensor | None]:
    return candidates(logits, warps(*logits.shape, spec))


def drawn(logits: torch.Tensor, spec: SamplingSpec, seeds: list[int], step: int = 0) -> list[int]:
    """Tokens drawn from [rows, vocabulary], or from one row for all seeds."""
    many = logits.expand(len(seeds), -1)
    steps = torch.full((len(seeds),), step)
    return draw(many, warps(*many.shape, spec), torch.tensor(seeds), steps).tolist()


def test_mix64_is_splitmix64() -> None:
    # reference outputs of SplitMix64 seeded with 0: state advances by the golden gamma per draw
    gamma = 0x9E3779B97F4A7C15
    states = [(i * gamma) & (2**64 - 1) for i in (1, 2, 3)]
    signed = torch.tensor([s - 2**64 if s >> 63 else s for s in states])
    got = [int(v) & (2**64 - 1) for v in mix64(signed)]
    assert got == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_uniforms_are_inside_the_open_interval_and_uniform() -> None:
    u = uniform(torch.tensor([1, 2**62, -5]), 7, torch.arange(200_000)[None])
    assert u.dtype == torch.float64
    assert u.min() > 0
    assert u.max() < 1
    assert (u.mean(-1) - 0.5).abs().max() < 0.003
    counts = torch.histc(u[0], bins=50, min=0, max=1)
    chi2 = ((counts - 4000) ** 2 / 4000).sum()
    assert chi2 < 90.0  # 49 degrees of freedom: p < 0.0004 beyond this
    assert torch.isfinite(gumbel(torch.tensor([1]), 0, torch.arange(100_000)[None])).all()


def many(logits: torch.Tensor, temperature: float, count: int, step: int = 0) -> torch.Tensor:
    """Draws of seeds 0 to `count`, all at once by the definition; the first ones are those of `draw`."""
    noise = gumbel(torch.arange(count), step, torch.arange(logits.shape[-1])[None])
    tokens = (noise + (logits / temperature).double()).argmax(-1)
    spec = SamplingSpec(temperature=temperature)
    assert drawn(logits, spec, list(range(300)), step) == tokens[:300].tolist()
    return tokens


def test_draws_follow_the_softmax(subtests: pytest.Subtests) -> None:
    for temperature in [0.5, 1.0, 1.7]:
        with subtests.test(temperature=temperature):
            torch.manual_seed(1)
            logits = torch.randn(1, 12)
            draws = 50_000
            seen = torch.bincount(many(logits, temperature, draws), minlength=12).double()
            want = (logits[0] / temperature).softmax(-1).double() * draws
            assert ((seen - want) ** 2 / want).sum() < 36.0  # 11 degrees of freedom: p = 0.0002


def test_steps_and_seeds_give_independent_draws() -> None:
    first, second = (many(torch.zeros(1, 10), 1.0, 20_000, step) for step in (0, 1))
    table = torch.bincount(first * 10 + second, minlength=100).double()
    assert ((table - 200) ** 2 / 200).sum() < 155.0  # 99 degrees of freedom: p = 0.0003


def test_same_candidates_as_transformers(subtests: pytest.Subtests) -> None:
    for top_k, top_p in [(None, 0.9), (7, 1.0), (7, 0.6), (1, 1.0), (None, 1e-6), (50, 0.95), (2000, 0.9)]:
        for vocab in [32, 4000]:
            with subtests.test(vocab=vocab, top_k=top_k, top_p=top_p):
                torch.manual_seed(3)
                logits = torch.randn(6, vocab) * 3
                reference = LogitsProcessorList([TemperatureLogitsWarper(0.8)])
                if top_k is not None:
                    reference.append(TopKLogitsWarper(top_k))
                if top_p < 1:
                    reference.append(TopPLogitsWarper(top_p))
                want = reference(torch.zeros(6, 1, dtype=torch.long), logits)  # type: ignore[arg-type]
                spec = SamplingSpec(temperature=0.8, top_k=top_k, top_p=top_p)
                values, index = kept(logits, spec)
                assert index is not None
                got = torch.full_like(logits, -torch.inf).scatter_(1, index, values)
                assert torch.equal(got.isfinite(), want.isfinite())
                left = want.isfinite()
                assert torch.allclose(got[left], want[left])


def test_min_p_is_transformers_s_and_comes_before_top_k() -> None:
    torch.manual_seed(3)
    logits = torch.randn(6, 4000) * 3
    values, index = kept(logits, SamplingSpec(temperature=0.8, min_p=0.1))
    want = MinPLogitsWarper(0.1)(torch.zeros(6, 1, dtype=torch.long), logits / 0.8)  # type: ignore[arg-type]
    assert index is None and 1 < int(values.isfinite().sum(-1).max()) < 100
    assert torch.equal(values.isfinite(), want.isfinite())
    few, index = kept(logits, SamplingSpec(temperature=0.8, top_k=50, min_p=0.1))
    assert index is not None
    assert torch.equal(few.isfinite().sum(-1), values.isfinite().sum(-1))


def test_top_p_looks_beyond_the_first_candidates() -> None:
    # flat logits over 4,000 tokens: half of the probability needs 2,000 of them
    values, index = kept(torch.zeros(1, 4000), SamplingSpec(temperature=1.0, top_p=0.5))
    assert index is not None
    assert abs(int(values.isfinite().sum()) - 2000) <= 1


def test_a_gpu_finds_the_nucleus_without_sorting_rows(subtests: pytest.Subtests) -> None:
    for vocab in (32, 1024, 5000):
        rows = rows_of_every_kind(max(vocab, 1500))[:, :vocab]
        for temperature, top_p in [(1.0, 0.9), (0.2, 0.5), (1.0, 1e-9), (3.0, 0.999), (1.0, 1 - 1e-6)]:
            probs = (rows / temperature).softmax(-1)
            # of equal ones the first are taken
            values, index = probs.double().sort(dim=-1, descending=True, stable=True)
            due = torch.zeros_like(probs, dtype=torch.bool).scatter(
                1, index, values.cumsum(-1) - values < torch.tensor(top_p)
            )
            with subtests.test(vocab=vocab, temperature=temperature, top_p=top_p):
                assert torch.equal(within(probs, torch.full((len(rows), 1), top_p)), due)


def rows_of_every_kind(vocab: int = 4000) -> torch.Tensor:
    """A flat row, peaked ones, one whose 1,024 likeliest tokens just miss 0.9, ties by the hundred."""
    torch.manual_seed(6)
    flat = torch.zeros(vocab)
    peaked = torch.full((vocab,), -20.0)
    peaked[torch.randperm(vocab)[:3]] = torch.tensor([4.0, 3.5, 3.0])
    tied = (torch.randn(vocab) * 3).bfloat16().float()  # logits of half precision are often equal
    level = torch.zeros(vocab).index_fill_(0, torch.randperm(vocab)[:1500], 9.0)
    edge = torch.zeros(vocab).index_fill_(0, torch.randperm(vocab)[:1020], 2.0)
    return torch.stack([flat, peaked, tied, torch.randn(vocab) * 2, level, edge, torch.randn(vocab)])


def test_a_row_draws_what_it_draws_alone_whatever_stands_beside_it(subtests: pytest.Subtests) -> None:
    for spec in [{"top_p": 0.9}, {"top_p": 0.5, "temperature": 0.3}, {"top_k": 50}, {}]:
        with subtests.test(spec=spec):
            sampling = SamplingSpec(**{"temperature": 1.0} | spec)
            rows = rows_of_every_kind()
            for step in range(12):
                seeds = [100 * step + i for i in range(len(rows))]
                together = drawn(rows.clone(), sampling, seeds, step)
                alone = [drawn(rows[i : i + 1], sampling, [seed], step)[0] for i, seed in enumerate(seeds)]
                assert together == alone, step
