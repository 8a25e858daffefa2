"""Allocator failures at chosen steps of a real model: results are those of an undisturbed run.

The failures come from a forward hook of the test, where a device's allocator would raise them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from actograph.contract.base import ErrorRecord
from actograph.contract.errors import OutOfDeviceMemory
from actograph.contract.specs import SamplingSpec
from worker.engine.engine import Engine
from worker.engine.model.memory import LearnedLimit
from worker.engine.requests import BufferOptions, Generation, GenerationRequest, RowChunk

pytestmark = pytest.mark.integration

MODEL = "tiny-qwen3"
HOOKS = ["embed", "attn_in.0", "resid_post.0", "mlp_in.1", "logits"]
PROMPTS = [
    "12+13",
    "Tom has 4 apples and buys 5 more: how many are they?",
    "one",
    "a b c d e f",
    "seven times eight is",
]
TOKENS = 9
SAMPLING = SamplingSpec(max_tokens=TOKENS, temperature=0.8, top_p=0.95, seed=1)

EngineOf = Callable[[str], Engine]
#: (batch, pass of this attempt: 0 is the prompt's, 1 the first decode step) -> whether memory runs out
When = Callable[[int, int], bool]


@dataclass
class Failures:
    """The forward passes that were made to fail."""

    at: list[tuple[int, int]] = field(default_factory=list)  # (batch, pass)


@contextmanager
def scarce(engine: Engine, when: When) -> Iterator[Failures]:
    """Let the last layer's MLP fail as an allocator fails."""
    seen, step = Failures(), [0]

    def before(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        batch, tokens = args[0].shape[:2]
        step[0] = 0 if tokens > 1 else step[0] + 1
        if when(batch, step[0]):
            seen.at.append((batch, step[0]))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    module = engine.model.hf.get_submodule("model.layers.1.mlp")
    handle = module.register_forward_pre_hook(before)
    try:
        yield seen
    finally:
        handle.remove()
        engine.limit = LearnedLimit()


@pytest.fixture(scope="module")
def undisturbed(
    engine_of: EngineOf, requests_for: Any
) -> tuple[list[GenerationRequest], list[Generation], "WrittenOnce"]:
    engine = engine_of(MODEL)
    requests = requests_for(engine, PROMPTS)
    sink = WrittenOnce()
    return requests, engine.generate(requests, sampling=SAMPLING, hooks=HOOKS, sink=sink), sink


class WrittenOnce:
    """Keeps rows by token; refuses a row that it already has."""

    def __init__(self) -> None:
        self.kept: dict[int, dict[str, dict[int, torch.Tensor]]] = {}
        self.resets: list[int] = []

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
        for hook, chunk in rows.items():
            have = self.kept.setdefault(index, {}).setdefault(hook, {})
            for row in range(chunk.first_row, chunk.first_row + chunk.tensor.shape[0]):
                assert row not in have, f"sample {index}: row {row} of {hook} was written twice"
                have[row] = chunk.tensor[row - chunk.first_row]

    def reset(self, index: int) -> None:
        self.resets.append(index)
        self.kept.pop(index, None)


def assert_same(
    got: WrittenOnce, made: list[Generation], want: WrittenOnce, wanted: list[Generation]
) -> None:
    assert [g.generated_ids for g in made] == [g.generated_ids for g in wanted]
    assert [g.finish_reason for g in made] == [g.finish_reason for g in wanted]
    assert got.kept.keys() == want.kept.keys()
    for index, hooks in want.kept.items():
        assert got.kept[index].keys() == hooks.keys()
        for hook, rows in hooks.items():
            assert list(got.kept[index][hook]) == list(rows)
            for row, tensor in rows.items():
                assert torch.allclose(got.kept[index][hook][row], tensor, atol=1e-4, rtol=1e-4), (hook, row)


PASSES = {"prefill": 0, "first decode step": 1, "middle": 5}


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("where", PASSES)
def test_batches_shrink_until_they_fit(engine_of: EngineOf, undisturbed: Any, where: str, most: int) -> None:
    requests, wanted, want = undisturbed
    engine, sink = engine_of(MODEL), WrittenOnce()
    with scarce(engine, lambda batch, step: step == PASSES[where] and batch > most) as failures:
        made = engine.generate(requests, sampling=SAMPLING, hooks=HOOKS, sink=sink)
        longest = max(len(r.prompt_ids) for r in requests)
        planned = engine.plan_batch_size(HOOKS, prompt_tokens=longest, max_tokens=TOKENS)
    assert [batch for batch, _ in failures.at] == ([5, 3] if most == 2 else [5, 3, 2, 2])
    assert planned == most
    assert_same(sink, made, want, wanted)


@pytest.mark.parametrize("where", PASSES)
def test_a_sample_that_never_fits_fails_with_the_numbers_and_the_others_go_on(
    engine_of: EngineOf, undisturbed: Any, where: str
) -> None:
    requests, wanted, want = undisturbed
    engine, sink, largest = engine_of(MODEL), WrittenOnce(), len(requests[1].prompt_ids)
    assert largest == max(len(r.prompt_ids) for r in requests)
    length = [0]

    def watch(module: torch.nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        tokens = kwargs["input_ids"].shape[1]
        length[0] = tokens if tokens > 1 else length[0]

    handle = engine.model.hf.register_forward_pre_hook(watch, with_kwargs=True)
    try:
        with scarce(engine, lambda batch, step: step == PASSES[where] and length[0] == largest) as failures:
            made = engine.generate(requests, sampling=SAMPLING, hooks=HOOKS, sink=sink)
    finally:
        handle.remove()
    assert [batch for batch, _ in failures.at] == [5, 3, 2, 1, 1]  # alone: once as asked, once sparingly
    error = made[1].error
    assert isinstance(error, OutOfDeviceMemory)
    record = ErrorRecord.model_validate(error.as_record())
    assert record.type == "cuda_out_of_memory"
    assert record.details is not None and record.details["rss_bytes"] > 0
    assert f"{largest} tokens" in record.message
    assert made[1].finish_reason == "error" and made[1].generated_ids == ()
    assert 1 not in sink.kept
    others = WrittenOnce()
    others.kept = {index: rows for index, rows in want.kept.items() if index != 1}
    assert_same(sink, [made[0], *made[2:]], others, [wanted[0], *wanted[2:]])


def test_rows_stored_before_the_failure_are_reset_and_stored_once(
    engine_of: EngineOf, undisturbed: Any
) -> None:
    requests, wanted, want = undisturbed
    engine = engine_of(MODEL)
    options = BufferOptions(host_buffer_bytes=1 << 14, shard_bytes=1 << 13, max_block_steps=2)
    sink = WrittenOnce()
    stored: list[int] = []

    def late(batch: int, step: int) -> bool:
        if step == 6 and batch > 2:
            stored.append(len(sink.kept))
            return True
        return False

    with scarce(engine, late):
        made = engine.generate(requests, sampling=SAMPLING, hooks=HOOKS, sink=sink, options=options)
    assert any(stored)
    assert_same(sink, made, want, wanted)


def test_what_failed_is_not_planned_again_whatever_goes_through_later(
    engine_of: EngineOf, requests_for: Any
) -> None:
    """Memory that holds a certain number of padded tokens, met by jobs of other shapes."""
    engine = engine_of(MODEL)
    longest = 40
    prompt = requests_for(engine, PROMPTS[:1])[0].prompt_ids
    long = tuple((prompt * longest)[:longest])

    def run(samples: int, hooks: Sequence[str], stop: bool = False) -> None:
        requests = [GenerationRequest(key=str(i), prompt_ids=long, seed=i) for i in range(samples)]
        engine.generate(
            requests, sampling=SAMPLING, hooks=hooks, sink=WrittenOnce(), should_stop=lambda: stop
        )

    def plan(hooks: Sequence[str] = (), prompt_tokens: int = longest) -> int:
        return engine.plan_batch_size(hooks, prompt_tokens=prompt_tokens, max_tokens=TOKENS)

    eight = ["embed", *(h for h in engine.structure.hooks if h.endswith(".0"))][:8]
    sixteen = [h for h in engine.structure.hooks if h != "logits"][:16]
    assert (len(eight), len(sixteen)) == (8, 16)
    with scarce(engine, lambda batch, step: batch >= 8) as failures:
        assert plan(eight) == 32
        run(8, eight)
        assert failures.at == [(8, 0)]
        assert plan(eight) == 4
        assert plan(sixteen) < 4  # each sample takes more
        assert 4 <= plan() < 8  # and less without capture, which is still no reason to try what failed
        assert plan(eight, prompt_tokens=4 * longest) == 1
        assert plan(eight, prompt_tokens=longest // 4) > 4
        for samples in (1, 2, 3):  # smaller batches that go through change nothing
            run(samples, eight)
        run(6, eight, stop=True)  # nor does one that was cancelled
        assert plan(eight) == 4
        run(6, eight)
        assert plan(eight) == 6
