"""One list of requests through `Engine.run`, as tests and benches ask for them, and the expected rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from actograph.contract.row_selection import NamedPositions
from actograph.contract.specs import Dtype, SamplingSpec
from tests.support.architectures import random_model
from tests.support.local_engine import ListedRun, tensor_of
from tests.support.plain_forward import plain_rows
from worker.engine.engine import Engine
from worker.engine.messages import Capture, Generation, Request, Rows, RunOptions, TokenLogprobs

PROMPTS = [
    "Once upon a time there was a little girl who had 12 apples and gave 5 of them away.",
    "The cat",
    "Tom has 34 books and Mia has 57 books. How many do they have in total?",
    "a",
    "One day, a dog",
]
_SAMPLING = SamplingSpec()
_OPTIONS = RunOptions()


class IndexedSink(Protocol):
    """Takes rows by the index of their request."""

    def write(self, index: int, rows: Mapping[str, Rows]) -> None: ...


def _never(*_: Any) -> bool:
    return False


class _IndexedRun(ListedRun):
    """A run whose keys are indices."""

    def __init__(
        self,
        waiting: Sequence[Request],
        sink: IndexedSink | None,
        stop: Callable[[], bool],
        drop: Callable[[int, int], bool],
    ) -> None:
        super().__init__(waiting)
        self.sink, self.stop, self.drop = sink, stop, drop

    def stopped(self) -> bool:
        return self.stop()

    def dropped(self, key: str) -> bool:
        return self.drop(int(key), len(self.live.get(key, ())))

    def write(self, key: str, rows: Mapping[str, Rows]) -> None:
        assert self.sink is not None
        self.sink.write(int(key), rows)


def generate(
    engine: Engine,
    requests: Sequence[Request],
    *,
    sampling: SamplingSpec = _SAMPLING,
    hooks: Sequence[str] = (),
    positions: NamedPositions = "all",
    dtype: Dtype = "model",
    shaping: Mapping[str, Any] = MappingProxyType({}),
    sink: IndexedSink | None = None,
    options: RunOptions = _OPTIONS,
    stop: Callable[[], bool] = _never,
    drop: Callable[[int, int], bool] = _never,
) -> list[Generation]:
    """Continue all requests in one run; results in their order, under their own keys.

    Args:
        hooks, positions, dtype, shaping: fields of the capture of requests that have none.
        stop: asked between passes; True cancels the run.
        drop: index of a live request and its generated tokens -> whether it ends alone.
    """
    capture = Capture(hooks=tuple(hooks), positions=positions, dtype=dtype, **shaping) if hooks else None
    asked = [
        replace(request, key=str(i), sampling=sampling, capture=request.capture or capture)
        for i, request in enumerate(requests)
    ]
    run = _IndexedRun(asked, sink, stop, drop)
    engine.run(source=run, control=run, results=run, sink=run if sink is not None else None, options=options)
    for left in run.waiting:  # the run was stopped before it pulled them
        run.done(
            Generation(key=left.key, prompt_ids=left.prompt_ids, generated_ids=(), finish_reason="cancelled")
        )
    return [replace(run.made[str(i)], key=request.key) for i, request in enumerate(requests)]


def read_texts(engine: Engine, requests: Sequence[Request], **options: Any) -> list[Generation]:
    """Read all requests in one run, and generate nothing; options as in `generate`."""
    return generate(engine, [replace(request, max_tokens=0) for request in requests], **options)


def requests_for(engine: Engine, prompts: Sequence[str], seed: int = 0) -> list[Request]:
    """A request for each prompt, each with a seed of its own."""
    return [
        Request(key=f"s{i}", prompt_ids=tuple(engine.model.tokenizer(text)["input_ids"]), seed=seed + i)
        for i, text in enumerate(prompts)
    ]


class KeepingSink:
    """Joins the chunks of each sample."""

    def __init__(self) -> None:
        self.chunks: dict[int, dict[str, list[Rows]]] = {}

    def write(self, index: int, rows: Mapping[str, Rows]) -> None:
        for hook, chunk in rows.items():
            self.chunks.setdefault(index, {}).setdefault(hook, []).append(chunk.copied())

    def first_row(self, index: int, hook: str) -> int:
        return self.chunks[index][hook][0].first_row

    def rows(self, index: int, hook: str) -> Tensor:
        return torch.cat([tensor_of(c) for c in self.chunks[index][hook]])


def assert_same_logprobs(
    got: Sequence[TokenLogprobs | None] | None, want: Sequence[TokenLogprobs | None] | None
) -> None:
    assert (got is None) == (want is None)
    for one, other in zip(got or (), want or (), strict=True):
        if one is None or other is None:
            assert one is other
            continue
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [p for _, p in one.top] == pytest.approx([p for _, p in other.top], abs=1e-4)


def reference(engine: Engine, generation: Generation, hooks: Iterable[str]) -> dict[str, Tensor]:
    """Rows of hooks or locations in one plain forward over all tokens that were run."""
    ids = generation.prompt_ids + generation.generated_ids[:-1]
    return plain_rows(engine, ids, hooks)


def random_engine(config: Any, tokenizer: PreTrainedTokenizerBase, name: str) -> Engine:
    """An engine around random weights."""
    return Engine(random_model(config, tokenizer, name))
