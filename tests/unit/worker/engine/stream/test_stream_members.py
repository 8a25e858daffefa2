"""Members of a batch that differ in one thing each: every one equals its run alone, traced."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from actograph.contract.row_selection import Stride, TokenRange
from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import assert_same_logprobs
from tests.support.local_engine import tensor_of
from tests.support.stream_run import RANDOM, TRAINED, StreamRun, ask, plan_of, prompts, stream_model
from tests.support.token_choosers import rule_for
from worker.engine.locations import ModelHooks
from worker.engine.messages import Capture, Edit, Request, StatisticsOptions, TextEnd

MOST = 12
NAMES = [*TRAINED, *RANDOM]
LENGTHS = {"short": 1, "two": 2, "middle": 40, "long": 90, "chunks": 130}
SAMPLED: dict[str, SamplingSpec] = {
    "warm": SamplingSpec(temperature=0.8),
    "hot": SamplingSpec(temperature=1.3),
    "top k and p": SamplingSpec(temperature=1.0, top_k=20, top_p=0.95),
    "top p": SamplingSpec(temperature=0.7, top_p=0.9),
    "penalised": SamplingSpec(temperature=0.9, presence_penalty=0.5, frequency_penalty=0.3),
    "greedy, penalised": SamplingSpec(frequency_penalty=1.5),
    "biased": SamplingSpec(logit_bias={5: 3.5, 9: -100.0}),
    "stopped": SamplingSpec(stop=["e", "the"]),
}


def members(hooks: ModelHooks) -> list[Request]:
    """Requests that differ from the first in one thing each."""
    every = plan_of(hooks)
    some = Capture(hooks=("resid_post.0", "mlp_in.1", "attn_out.0"))
    (prompt,) = prompts((23,), vocabulary=hooks.structure.vocab_size)
    width = hooks.width_of("resid_post.0")
    vector = torch.randn(width, generator=torch.Generator().manual_seed(5)).numpy()

    def one(key: str, prompt: tuple[int, ...] = prompt, most: int = MOST, **changes: Any) -> Request:
        return ask(key, prompt, most, **({"capture": some, "seed": 7} | changes))

    def rows(key: str, **changes: Any) -> Request:
        return one(key, capture=replace(some, **changes))

    def edited(key: str, prompt: tuple[int, ...] = prompt, **changes: Any) -> Request:
        given: dict[str, Any] = {"hook": "resid_post.0", "op": "add", "coefficient": 2.0, "vector": vector}
        return one(key, prompt, edits=(Edit(**(given | changes)),))

    lengths = prompts(tuple(LENGTHS.values()), seed=1, vocabulary=hooks.structure.vocab_size)
    (head,) = prompts((130,), seed=2, vocabulary=hooks.structure.vocab_size)
    tails = prompts((5, 70, 9, 1), seed=3, vocabulary=hooks.structure.vocab_size)
    return [
        one("plain"),
        one("every hook", capture=every),
        one("no rows", capture=None),
        one("one token", most=1),
        one("end of text", stop_at=TextEnd(r"[a-z]\Z", "e", 8)),
        *(one(key, p) for key, p in zip(LENGTHS, lengths, strict=True)),
        *(one(key, sampling=sampling) for key, sampling in SAMPLED.items()),
        *(one(f"seed {seed}", sampling=SAMPLED["hot"], seed=seed) for seed in (6, 2**63 - 1)),
        one("log probabilities", top_logprobs=3),
        one("scored", top_logprobs=2, score_prompt=True),
        one("scored, long", lengths[-1], top_logprobs=0, score_prompt=True),
        *(rows(named, positions=named) for named in ("prompt", "generated", "last", "last_prompt")),
        rows("features", columns=(3, 1, 7)),
        rows("first features", columns=4),
        rows("half precision", dtype="float16"),
        rows("mean", reduce="mean"),
        rows("statistics", statistics=StatisticsOptions(threshold=0.5)),
        one("every third", keep=Stride(stride=3)),
        one("these tokens", capture=every, keep=[0, 22, 25]),
        edited("steered"),
        edited("steered answer", positions="generated"),
        edited("steered at the end", positions="last_prompt"),
        edited("steered in a range", positions=TokenRange(start=4, stop=25)),
        edited("steered tokens", rule=rule_for(prompt, Stride(stride=2))),
        edited("projected", op="project_out", coefficient=1.0),
        edited("replaced input", hook="mlp_in.1", op="set", positions="last"),
        *(one(f"fork {i}", head + tail) for i, tail in enumerate(tails)),
        one("fork without rows", head + tails[0], capture=None),
        one("fork, answer's rows", head + tails[1], capture=replace(some, positions="generated")),
        *(edited(f"steered fork {i}", head + tails[i]) for i in range(2)),
        one("read", most=0),
        one("read, every hook", capture=every, most=0),
        one("read, scored", most=0, top_logprobs=2, score_prompt=True),
        one("read, steered", most=0, edits=edited("").edits),
        one("read, last", capture=replace(some, positions="last_prompt"), most=0),
    ]


def _assert_rows(run: StreamRun, key: str, alone: StreamRun) -> None:
    got = run.chunks.get(key, {})
    wanted = alone.chunks.get(key, {})
    assert got.keys() == wanted.keys(), key
    for hook, due in wanted.items():
        rows = torch.cat([tensor_of(chunk) for chunk in due])
        assert got[hook][0].dtype == due[0].dtype, (key, hook)
        assert got[hook][0].first_row == (due[0].first_row if due[0].tokens is None else due[0].tokens[0])
        assert [c.over for c in got[hook]][-1] == due[-1].over, (key, hook)
        if due[0].tokens is not None:
            assert run.tokens(key, hook) == [t for c in due for t in c.tokens or ()], (key, hook)
        if hook.endswith(".kurtosis"):  # of a spread that rounding alone makes it is anything
            continue
        exact = 2e-3 if rows.dtype == torch.float16 else 1e-4
        torch.testing.assert_close(
            run.rows(key, hook), rows, atol=exact, rtol=exact, equal_nan=True, msg=f"{key}: {hook}"
        )


@pytest.mark.parametrize(
    "name", [name if name == TRAINED[0] else pytest.param(name, marks=pytest.mark.soak) for name in NAMES]
)
def test_every_member_equals_its_run_alone(shared: Path, name: str, subtests: pytest.Subtests) -> None:
    hooks = stream_model(shared, name)
    items = members(hooks)
    arrivals = {item.key: turn for turn, item in enumerate(items[20:])}
    block = 64 * 4 * sum(info.width for info in hooks.structure.hooks.values())
    runs = {
        "packed": StreamRun(items, arrivals).run(hooks, most=9, step_tokens=48, shard_bytes=20_000),
        "late": StreamRun(items, arrivals).run(hooks, most=9, step_tokens=48, shard_bytes=20_000, late=True),
        "apart": StreamRun(items, arrivals).run(hooks, most=9, step_tokens=96, late=True, apart=True),
        "little room": StreamRun(items).run(hooks, most=6, arena=450, rows=3 * block, step_tokens=64),
        "traced": StreamRun(items[::3]).run(hooks, "traced", most=5),
    }
    assert runs["packed"].statistics.shared and not runs["traced"].statistics.shared
    for item in items:
        alone = StreamRun([item]).run(hooks, "traced")
        expected = alone.made[item.key]
        assert expected.error is None
        for kind, run in runs.items():
            if item.key not in run.made:
                continue
            with subtests.test(kind=kind, member=item.key):
                made = run.made[item.key]
                assert made.error is None
                assert made.generated_ids == expected.generated_ids
                assert made.finish_reason == expected.finish_reason
                assert_same_logprobs(made.logprobs, expected.logprobs)
                assert_same_logprobs(made.prompt_logprobs, expected.prompt_logprobs)
                _assert_rows(run, item.key, alone)
