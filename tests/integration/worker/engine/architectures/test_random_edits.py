"""Random captures with random interventions, ragged batches and options, against plain hooks."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from actograph.contract.head_columns import columns_of, head_width
from actograph.contract.interventions import EditOp
from actograph.contract.row_selection import HeadFeatures, TokenRange
from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import KeepingSink, generate, read_texts
from tests.support.plain_forward import plain_rows
from tests.support.token_choosers import rule_for
from worker.engine.engine import Engine
from worker.engine.messages import Edit, Generation, Request, RunOptions

pytestmark = pytest.mark.integration

EDITED = (
    "embed", "resid_post", "resid_mid", "attn_out", "mlp_out", "attn_in", "mlp_in", "final_norm", "logits",
    "q", "k", "v", "z",
)  # fmt: skip
OPS: tuple[EditOp, ...] = ("add", "scale", "zero", "replace", "project_out", "add_row_norm")


def random_edit(rng: random.Random, hooks: Sequence[str], engine: Engine, prompt: int) -> Edit:
    hook, op = rng.choice(hooks), rng.choice(OPS)
    width = engine.width_of(hook)
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    vector = None if op in ("scale", "zero") else torch.randn(width, generator=generator).numpy()
    start = rng.randrange(0, 12)
    positions: Any = rng.choice(
        ["all", "prompt", "generated", "last_prompt", TokenRange(start=start, stop=None),
         TokenRange(start=start, stop=start + rng.randrange(1, 8)), [0, 3, start, start + 5]]
    )  # fmt: skip
    listed = isinstance(positions, list)
    where = {"rule": rule_for(range(prompt), positions)} if listed else {"positions": positions}
    coefficient = rng.choice([-1.5, 0.5, 1.0, 2.0])
    width = head_width(hook, engine.structure)
    if width is not None and rng.random() < 0.7:  # some heads alone
        every = range(engine.width_of(hook) // width)
        features = HeadFeatures(heads=rng.sample(every, rng.randint(1, len(every))))
        columns = columns_of(features, hook, engine.structure, "")
        assert columns is not None
        vector = None if vector is None else vector[: len(columns)]
        where["columns"] = columns
    return Edit(hook=hook, op=op, coefficient=coefficient, vector=vector, **where)


def changed(edit: Edit, rows: torch.Tensor) -> torch.Tensor:
    """The definition of each operation, in float64."""
    if edit.columns is not None:
        of_heads = rows.double()
        columns = list(edit.columns)
        of_heads[:, columns] = changed(replace(edit, columns=None), rows[:, columns])
        return of_heads
    x, c = rows.double(), edit.coefficient
    if edit.op == "zero":
        return x * 0
    if edit.op == "scale":
        return x * c
    assert edit.vector is not None
    v = torch.from_numpy(edit.vector).double()
    if edit.op == "add":
        return x + c * v
    if edit.op == "replace":
        return (c * v).expand_as(x)
    unit = v / v.norm()
    if edit.op == "add_row_norm":
        return x + c * x.norm(dim=-1, keepdim=True) * unit
    along: torch.Tensor = (x @ unit)[:, None] * unit
    return x - c * along


def meant(edit: Edit, prompt: int, tokens: int) -> list[int]:
    if edit.rule is not None:
        assert isinstance(edit.rule.positions, list)
        return [token for token in range(tokens) if token in edit.rule.positions]
    if isinstance(edit.positions, TokenRange):
        stop = tokens if edit.positions.stop is None else min(edit.positions.stop, tokens)
        return list(range(edit.positions.start, stop))
    ranges = {"all": (0, tokens), "prompt": (0, prompt), "generated": (prompt, tokens)}
    return list(range(*ranges.get(str(edit.positions), (prompt - 1, prompt))))


def oracle(
    engine: Engine, generation: Generation, edits: Sequence[Edit], hooks: Sequence[str]
) -> Mapping[str, torch.Tensor]:
    """Every token at once, alone, with plain hooks: what is written first, then what is read."""
    ids = generation.prompt_ids + generation.generated_ids[:-1]
    prompt, tokens = len(generation.prompt_ids), len(ids)

    def edit_at(hook: str) -> Callable[[torch.Tensor], None]:
        def write(tensor: torch.Tensor) -> None:
            rows = tensor.reshape(tokens, -1).clone()
            for edit in edits:
                if edit.hook == hook and (where := meant(edit, prompt, tokens)):
                    rows[where] = changed(edit, rows[where]).to(rows.dtype)
            tensor.copy_(rows.view(tensor.shape))  # queries and keys are no one block of memory

        return write

    writes = {edit.hook: edit_at(edit.hook) for edit in edits}
    return plain_rows(engine, ids, hooks, writes)


@pytest.mark.covering(9)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "qwen3_moe", "gpt_neox", "olmo2"])
def test_rows_and_tokens_are_those_of_plain_hooks(
    name: str, seed: int, engine_of: Callable[[str], Engine]
) -> None:
    engine, rng = engine_of(name), random.Random(1000 * seed + len(name))
    # resid_pre is the tensor that the layer before put out: it is written under that name alone
    editable, readable = (
        [hook for hook in engine.structure.hooks if hook.partition(".")[0] in points]
        for points in (EDITED, (*EDITED, "resid_pre", "router_logits"))
    )
    inner = ("1.mlp.up_proj.output", "1.mlp.act.output")
    editable += [name for name in engine.structure.module_locations if name.endswith(inner)]
    hooks = rng.sample(readable, 5)
    head = "logits" if "logits" in engine.structure.hooks else "final_norm"
    lengths = [rng.choice([1, 2, 5, 9, 14]) for _ in range(rng.randrange(1, 5))]
    edits = [[random_edit(rng, editable, engine, n) for _ in range(rng.randrange(0, 4))] for n in lengths]
    requests = [
        Request(
            key=str(i), prompt_ids=tuple(rng.randrange(3, 500) for _ in range(n)), seed=i, edits=tuple(own)
        )
        for i, (n, own) in enumerate(zip(lengths, edits, strict=True))
    ]
    options = RunOptions(slots=rng.choice([1, 2, 8]), shard_bytes=rng.choice([1 << 11, 1 << 28]))
    made, read = KeepingSink(), KeepingSink()
    sampling = SamplingSpec(max_tokens=rng.choice([1, 2, 9]), temperature=rng.choice([0.0, 0.8]))
    generations = generate(engine, requests, sampling=sampling, hooks=hooks, sink=made, options=options)
    texts = read_texts(engine, requests, hooks=hooks, sink=read, options=options)
    for sink, outcomes in ((made, generations), (read, texts)):
        for i, (outcome, own) in enumerate(zip(outcomes, edits, strict=True)):
            assert outcome.error is None
            want = oracle(engine, outcome, own, [*hooks, head])
            for hook in hooks:
                expected = want[hook][sink.first_row(i, hook) :]
                scale = max(1.0, expected.abs().max().item())
                assert torch.allclose(sink.rows(i, hook), expected, rtol=1e-3, atol=1e-3 * scale), (hook, own)
            if sink is made and not sampling.temperature and head == "logits":
                likeliest = want[head][len(outcome.prompt_ids) - 1 :].argmax(-1)
                assert likeliest.tolist() == list(outcome.generated_ids), own
