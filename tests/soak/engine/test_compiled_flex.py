"""flex_attention as it is compiled, here for a CPU. It takes minutes, and a GPU has other kernels."""

import random
import shutil
from collections.abc import Iterator

import pytest
import torch

from worker.engine.packed import attention, flex
from worker.engine.packed.attention import LayerAttention
from worker.engine.packed.step import Chunk, Step

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
    pytest.mark.filterwarnings("ignore"),  # of torch's compiler
]
PLACES = 1501


@pytest.fixture(autouse=True)
def compiler() -> Iterator[None]:
    torch._dynamo.reset()
    flex._compiled.cache_clear()
    yield
    torch._dynamo.reset()
    flex._compiled.cache_clear()


def _step(drawn: random.Random, singles: int, chunks: int) -> Step:
    """A pack of requests whose ranges begin at blocks, each with room for two blocks."""
    starts = drawn.sample(range(0, PLACES // flex.BLOCK - 1, 2), singles + chunks)
    spans = [(flex.BLOCK * one, flex.BLOCK * one + drawn.randint(1, 256)) for one in starts[:singles]]
    made, at = [], singles
    for one in starts[singles:]:
        start = drawn.randint(0, 100)
        count = drawn.randint(2, 150)
        made.append(Chunk(at, at + count, flex.BLOCK * one, start))
        at += count
    return Step([], [], spans, made)


def _due(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: Step, kind: LayerAttention
) -> torch.Tensor:
    singles = query[: len(step.spans)]
    parts = [attention.decode(singles, keys, values, step.spans, kind)] if step.spans else []
    for c in step.chunks:
        k, v = (x[:, c.begin : c.begin + c.start + c.stop - c.first] for x in (keys, values))
        parts.append(attention.chunk(query[c.first : c.stop], k, v, c.start, kind))
    return torch.cat(parts)


def test_packs_of_all_sizes_are_right_and_share_a_few_kernels(subtests: pytest.Subtests) -> None:
    drawn = random.Random(0)
    torch.manual_seed(0)
    keys, values = (torch.randn(2, PLACES, 16) for _ in range(2))
    packs = [(1, 0), (2, 0), (5, 0), (4, 1), (0, 1), (0, 3), (3, 2), (1, 1), (5, 0)]
    with torch.inference_mode():
        for kind in (
            LayerAttention(0.3, None, 50.0),
            LayerAttention(0.3, 40, 50.0),
            LayerAttention(0.3),
            LayerAttention(0.3, None, 30.0),
        ):
            for singles, chunks in packs:
                step = _step(drawn, singles, chunks)
                query = torch.randn(singles + sum(c.stop - c.first for c in step.chunks), 6, 16)
                with subtests.test(kind=kind, singles=singles, chunks=chunks):
                    got = flex.attend(query, keys, values, step, *kind)
                    torch.testing.assert_close(
                        got, _due(query, keys, values, step, kind), atol=1e-5, rtol=1e-5
                    )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 24


def test_a_neighbour_s_numbers_that_are_none_reach_no_other_range() -> None:
    step = _step(random.Random(1), 4, 1)
    keys, values = (torch.randn(2, PLACES, 16) for _ in range(2))
    query = torch.randn(4 + step.chunks[0].stop - step.chunks[0].first, 6, 16)
    kind = LayerAttention(0.3, None, 50.0)
    with torch.inference_mode():
        due = flex.attend(query, keys, values, step, *kind)
        begin = step.spans[0][0]
        for held in (keys, values):
            held[:, begin : begin + 2 * flex.BLOCK] = torch.nan
        again = Step([], [], step.spans, step.chunks)
        got = flex.attend(query, keys, values, again, *kind)
    assert got[0].isnan().all()
    assert torch.equal(got[1:], due[1:])
