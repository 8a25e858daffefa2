"""Members of a batch that differ in nearly everything: each is what it is when it runs alone."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from actograph.contract.row_selection import NamedPositions, Stride, TokenRange
from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import PROMPTS, KeepingSink, assert_same_logprobs, generate
from tests.support.token_choosers import rule_for
from worker.engine.engine import Engine
from worker.engine.messages import Edit, Generation, Request, RunOptions, StatisticsOptions

pytestmark = pytest.mark.integration

EngineOf = Callable[[str], Engine]
MODELS = ["tiny-qwen3", "stories260k"]
HOOKS = ["resid_post.0", "mlp_in.1", "attn_out.1", "logits"]  # as `Way` has them
# the trained models are sure of themselves: less heat would choose the same tokens by any seed
SAMPLED = SamplingSpec(max_tokens=14, temperature=3.0, top_p=0.98)


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a batch is run, and how its members are held against their runs alone."""

    sampling: SamplingSpec = field(default_factory=lambda: SamplingSpec(max_tokens=14))
    hooks: Sequence[str] = ("resid_post.0", "mlp_in.1", "attn_out.1", "logits")
    positions: NamedPositions = "all"
    shaping: dict[str, Any] = field(default_factory=dict[str, Any])
    options: RunOptions = field(default_factory=RunOptions)
    dtype: Any = "model"

    def run(self, engine: Engine, requests: Sequence[Request]) -> tuple[list[Generation], KeepingSink]:
        sink = KeepingSink()
        made = generate(
            engine,
            requests,
            sampling=self.sampling,
            hooks=self.hooks,
            positions=self.positions,
            dtype=self.dtype,
            shaping=self.shaping,
            sink=sink,
            options=self.options,
        )
        return made, sink

    def assert_alone(self, engine: Engine, requests: Sequence[Request]) -> list[Generation]:
        """Every member of the batch equals its run alone; returns what the batch made."""

        together, sink = self.run(engine, requests)
        for i, request in enumerate(requests):
            (alone,), own = self.run(engine, [request])
            assert together[i].error is None and alone.error is None, i
            assert together[i].generated_ids == alone.generated_ids, i
            assert together[i].finish_reason == alone.finish_reason, i
            assert_same_logprobs(together[i].logprobs, alone.logprobs)
            assert_same_logprobs(together[i].prompt_logprobs, alone.prompt_logprobs)
            self.assert_rows(sink, i, own)
        return together

    @classmethod
    def assert_rows(cls, sink: KeepingSink, sample: int, wanted: KeepingSink, alone: int = 0) -> None:
        """The same rows of the same tokens; float32 within 1e-4."""
        kept, due = sink.chunks.get(sample, {}), wanted.chunks.get(alone, {})
        assert kept.keys() == due.keys(), sample
        for hook in due:
            tokens, over, rows = cls.rows_of(sink, sample, hook)
            assert (tokens, over) == cls.rows_of(wanted, alone, hook)[:2], (sample, hook)
            other, exact = wanted.rows(alone, hook), 1e-4
            assert rows.dtype == other.dtype and rows.shape == other.shape, (sample, hook)
            if hook.endswith(".kurtosis"):  # of a spread that rounding alone makes it is anything
                channels, exact = cls._varies(wanted, alone, hook.removesuffix(".kurtosis")), 1e-3
                rows, other = rows.where(channels, 0.0), other.where(channels, 0.0)
            message = f"sample {sample}, {hook}"
            torch.testing.assert_close(rows, other, atol=exact, rtol=exact, equal_nan=True, msg=message)

    @staticmethod
    def _varies(sink: KeepingSink, sample: int, hook: str) -> torch.Tensor:
        variance, low, high = (sink.rows(sample, f"{hook}.{name}") for name in ("variance", "min", "max"))
        return variance.sqrt() > 1e-4 * low.abs().maximum(high.abs())

    @staticmethod
    def rows_of(
        sink: KeepingSink, sample: int, hook: str
    ) -> tuple[list[int] | int, int | None, torch.Tensor]:
        """The tokens of a hook's rows or the first one's number, how many were summed up, the rows."""
        chunks = sink.chunks[sample][hook]
        tokens = [token for chunk in chunks for token in chunk.tokens or ()]
        first = chunks[0].first_row if chunks[0].tokens is None else tokens
        return first, chunks[-1].over, sink.rows(sample, hook)


def request(engine: Engine, text: str, key: str = "base", **changes: Any) -> Request:
    ids = tuple(engine.model.tokenizer(text)["input_ids"])
    return replace(Request(key=key, prompt_ids=ids, seed=5), **changes)


def vector(width: int, seed: int) -> Any:
    return (torch.randn(width, generator=torch.Generator().manual_seed(seed)) * 2.0).numpy()


def edited(base: Edit, width: int, prompt: int) -> dict[str, tuple[Edit, ...]]:
    """The edit, and edits that differ from it in one thing each."""
    return {
        "as it is": (base,),
        "without": (),
        "coefficient": (replace(base, coefficient=-1.5),),
        "vector": (replace(base, vector=vector(width, 2)),),
        "operation": (replace(base, op="replace"),),
        "hook": (replace(base, hook="resid_post.1"),),
        "positions": (replace(base, positions="generated"),),
        "range": (replace(base, positions=TokenRange(start=1, stop=4)),),
        "another range": (replace(base, positions=TokenRange(start=2, stop=4)),),
        "range to come": (replace(base, positions=TokenRange(start=6, stop=30)),),
        "tokens": (replace(base, rule=rule_for(range(prompt), [0, 6])),),
        "other tokens": (replace(base, rule=rule_for(range(prompt), [1, 7])),),
        "twice": (base, base),
        "in one order": (base, Edit(hook=base.hook, op="scale", coefficient=-0.5)),
        "in the other order": (Edit(hook=base.hook, op="scale", coefficient=-0.5), base),
    }


CHOICES: list[Any] = [
    Stride(stride=1),  # all that is run
    Stride(stride=3),
    list(range(24, 40)),  # begins late in the generation
    [0, 3],  # of the prompt alone
    [-1],
    [500],  # none at all
    Stride(stride=1),
    [-2, 19, 20, 21, 25],
]
SHAPINGS = {
    "rows": {},
    "features": {"columns": (5, 0, 3)},
    "mean": {"reduce": "mean"},
    "max": {"reduce": "max"},
    "last": {"reduce": "last"},
    "statistics": {"statistics": StatisticsOptions(threshold=0.5)},
    "numbers": {"statistics": StatisticsOptions(rows=False), "columns": 4},
}


def any_batch(engine: Engine, dice: random.Random) -> tuple[Way, list[Request]]:
    """A batch of which nearly everything was thrown."""
    width = engine.width_of("resid_post.0")
    sampling = SamplingSpec(
        max_tokens=dice.randint(1, 18),
        temperature=dice.choice([0.0, 1.3, 4.0]),
        top_p=dice.choice([1.0, 0.8]),
        top_k=dice.choice([None, 1, 20]),
        stop=dice.choice([[], ["the", "."]]),
        presence_penalty=dice.choice([0.0, 1.0]),
        frequency_penalty=dice.choice([0.0, 0.7]),
        logit_bias=dice.choice([{}, {5: 3.0}]),
    )
    shaping = dice.choice(list(SHAPINGS.values()))
    chooses = dice.random() < 0.5
    batch = Way(
        sampling=sampling,
        positions="all" if chooses else dice.choice(["all", "all", "prompt", "generated", "last"]),
        shaping=shaping,
        dtype=dice.choice(["model", "float32"]),
        options=RunOptions(slots=dice.choice([0, 2, 3]), shard_bytes=dice.choice([8_000, 1 << 28])),
    )
    base = Edit(hook="resid_post.0", op="add", vector=vector(width, 3), coefficient=0.7)
    requests = []
    for i in range(dice.randint(2, 7)):
        made = request(
            engine,
            dice.choice(PROMPTS),
            str(i),
            seed=dice.getrandbits(62),
            max_tokens=dice.choice([None, None, 1, 2, 9, 21]),
            top_logprobs=dice.choice([None, None, 0, 2]),
            score_prompt=dice.random() < 0.3,
        )
        kinds = list(edited(base, width, len(made.prompt_ids)).values())
        rule = rule_for(made.prompt_ids, dice.choice(CHOICES)) if chooses else None
        requests.append(replace(made, edits=dice.choice(kinds) if dice.random() < 0.6 else (), rule=rule))
    return batch, requests


@pytest.mark.covering(6)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(25))
def test_any_member_of_any_batch_is_what_it_is_alone(name: str, seed: int, engine_of: EngineOf) -> None:
    engine = engine_of(name)
    batch, requests = any_batch(engine, random.Random(seed))
    batch.assert_alone(engine, requests)


def test_a_member_that_is_dropped_changes_no_other(engine_of: EngineOf) -> None:
    engine = engine_of("tiny-qwen3")
    requests = [request(engine, text, str(i), seed=i) for i, text in enumerate(PROMPTS)]
    whole, kept = Way(sampling=SAMPLED).run(engine, requests)
    sink = KeepingSink()
    made = generate(
        engine,
        requests,
        sampling=SAMPLED,
        hooks=HOOKS,
        sink=sink,
        drop=lambda index, tokens: index == 2 and tokens >= 4,
    )
    assert [one.finish_reason for one in made].count("dropped") == 1
    assert made[2].finish_reason == "dropped" and len(made[2].generated_ids) == 4
    for i in (0, 1, 3, 4):
        assert made[i] == whole[i]
        Way.assert_rows(sink, i, kept, i)
