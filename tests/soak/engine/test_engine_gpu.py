"""The same promises on a GPU: rows, edits and noise as on a CPU, a real out-of-memory."""

import copy
import gc
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Qwen3Config

from actograph.contract.row_selection import TokenRange
from actograph.contract.specs import Dtype, SamplingSpec
from tests.support.architectures import COMMON
from tests.support.engine_run import KeepingSink, generate, random_engine, read_texts, reference
from worker.engine.engine import Engine
from worker.engine.messages import Edit, Generation, Request, RunOptions, StatisticsOptions
from worker.engine.model.load import wrap_model
from worker.engine.tokens.sampler import SampledRow, Sampler
from worker.engine.tokens.sampling import gumbel

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(scope="module")
def engine(engine_of: Callable[[str], Engine]) -> Engine:
    large = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6}
    endless = {"max_position_embeddings": 4096, "bos_token_id": None, "eos_token_id": None}
    config = Qwen3Config(**COMMON | large | endless, head_dim=64)
    made = random_engine(config, engine_of("stories260k").model.tokenizer, "gpu")
    hf: Any = made.model.hf
    hf.generation_config.eos_token_id = None
    return Engine(wrap_model(hf.to("cuda"), made.model.tokenizer, name="gpu"))


def requests(*lengths: int) -> list[Request]:
    return [
        Request(key=str(i), prompt_ids=tuple((7 * i + 3 * t) % 500 + 3 for t in range(n)), seed=i)
        for i, n in enumerate(lengths)
    ]


OPTIONS = {"defaults": RunOptions(), "small": RunOptions(slots=2, row_bytes=16 << 20, shard_bytes=1 << 18)}


def check_rows(engine: Engine, made: list[Generation], sink: Any, tolerance: float) -> None:
    hooks = list(engine.structure.hooks)
    for i, generation in enumerate(made):
        assert generation.error is None
        want = reference(engine, generation, hooks)
        for hook in hooks:
            got = sink.rows(i, hook)
            expected = want[hook][sink.first_row(i, hook) :].to(got.dtype)
            assert not got.is_cuda and not got.is_pinned()
            assert torch.allclose(got, expected, rtol=tolerance, atol=tolerance), hook


@pytest.mark.parametrize("dtype", ["model", "float16"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_rows_equal_a_plain_forward(engine: Engine, options: RunOptions, dtype: Dtype) -> None:
    hooks = list(engine.structure.hooks)
    sink, texts = KeepingSink(), KeepingSink()
    tolerance = 1e-3 if dtype == "model" else 1e-2
    sampling = SamplingSpec(max_tokens=33)
    made = generate(
        engine, requests(40, 3, 17), sampling=sampling, hooks=hooks, sink=sink, options=options, dtype=dtype
    )
    check_rows(engine, made, sink, tolerance)
    made = read_texts(engine, requests(40, 3, 17), hooks=hooks, sink=texts, options=options, dtype=dtype)
    check_rows(engine, made, texts, tolerance)


def test_half_precision_attends_for_all_requests_in_one_call(engine: Engine) -> None:
    hf: Any = copy.deepcopy(engine.model.hf)
    half = Engine(wrap_model(hf.to(torch.bfloat16), engine.model.tokenizer, name="half"))
    assert half.forwards.reason is None
    assert half.forwards.attends_together
    hooks = list(half.structure.hooks)
    sink, sampling = KeepingSink(), SamplingSpec(max_tokens=33)
    made = generate(half, requests(40, 3, 17, 200), sampling=sampling, hooks=hooks, sink=sink)
    check_rows(half, made, sink, 5e-2)


@pytest.mark.parametrize(
    ("name", "dtype"), [("softcap", torch.bfloat16), ("softcap", torch.float32), ("plain", torch.float32)]
)
def test_softcaps_and_float32_attend_for_all_requests_in_one_call(
    engine: Engine, name: str, dtype: torch.dtype
) -> None:
    if name == "softcap":
        config = Gemma2Config(**COMMON | {"max_position_embeddings": 4096}, head_dim=64, sliding_window=48)
        whole = random_engine(config, engine.model.tokenizer, name)
    else:
        whole = engine
    hf: Any = copy.deepcopy(whole.model.hf)
    made_on = Engine(wrap_model(hf.to("cuda", dtype), engine.model.tokenizer, name=name))
    assert made_on.forwards.reason is None
    assert made_on.forwards.attends_together
    hooks, sink = list(made_on.structure.hooks), KeepingSink()
    sampling = SamplingSpec(max_tokens=33, ignore_eos=True)
    made = generate(made_on, requests(40, 3, 17, 200, 1), sampling=sampling, hooks=hooks, sink=sink)
    check_rows(made_on, made, sink, 5e-2 if dtype is torch.bfloat16 else 1e-3)


def test_replayed_passes_give_the_tokens_and_rows_of_others(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    hf: Any = copy.deepcopy(engine.model.hf)
    half = Engine(wrap_model(hf.to(torch.bfloat16), engine.model.tokenizer, name="half"))
    hooks, sampling = list(half.structure.hooks), SamplingSpec(max_tokens=40)
    found = []
    for options in (RunOptions(), RunOptions(cuda_graphs=True)):
        sink = KeepingSink()
        made = generate(
            half, requests(40, 3, 17, 200), sampling=sampling, hooks=hooks, sink=sink, options=options
        )
        check_rows(half, made, sink, 5e-2)
        found.append(made)
    assert [one.generated_ids for one in found[0]] == [one.generated_ids for one in found[1]]
    assert "not replayed" not in caplog.text


def test_replayed_passes_with_edits_give_the_tokens_and_rows_of_others(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """A prompt of several passes is among them."""
    hf: Any = copy.deepcopy(engine.model.hf)
    half = Engine(wrap_model(hf.to(torch.bfloat16), engine.model.tokenizer, name="half"))
    hooks = ["resid_post.1", "resid_post.3", "mlp_out.4", "resid_post.5"]
    for scale in (1.0, -0.5):
        vector = scale * torch.linspace(-1, 1, half.structure.hidden_size).numpy()
        edits = (
            Edit(hook="resid_post.1", op="add", vector=vector, coefficient=2.0, positions="generated"),
            Edit(hook="resid_post.1", op="project_out", vector=vector),
            Edit(hook="mlp_out.4", op="scale", coefficient=0.5, positions=TokenRange(start=1, stop=50)),
        )
        steered = [replace(r, edits=edits if i % 2 else ()) for i, r in enumerate(requests(40, 3, 17, 3900))]
        found, sinks = [], []
        for options in (RunOptions(), RunOptions(cuda_graphs=True)):
            sinks.append(KeepingSink())
            sampling = SamplingSpec(max_tokens=40)
            found.append(
                generate(half, steered, sampling=sampling, hooks=hooks, sink=sinks[-1], options=options)
            )
        assert [one.generated_ids for one in found[0]] == [one.generated_ids for one in found[1]]
        for i, hook in itertools.product(range(4), hooks):
            eager, replayed = (sink.rows(i, hook) for sink in sinks)
            assert torch.allclose(eager.float(), replayed.float(), rtol=5e-2, atol=5e-2), hook
    assert "not replayed" not in caplog.text


def test_a_slow_sink_holds_decoding_back_and_loses_no_row(engine: Engine) -> None:
    """Blocks are used again as soon as they are written: none may be overwritten before."""

    class Slow(KeepingSink):
        def write(self, index: int, rows: Any) -> None:
            time.sleep(0.01)
            super().write(index, rows)

    sink = Slow()
    hooks = list(engine.structure.hooks)
    options = RunOptions(row_bytes=16 << 20, shard_bytes=1 << 16)
    made = generate(
        engine,
        requests(40, 3, 17, 9),
        sampling=SamplingSpec(max_tokens=64),
        hooks=hooks,
        sink=sink,
        options=options,
    )
    check_rows(engine, made, sink, 1e-3)


def test_choices_columns_reductions_and_statistics_are_those_of_the_rows(engine: Engine) -> None:
    hooks = ["resid_mid.2", "mlp_out.5", "logits"]

    def run(**options: Any) -> Any:
        sink = KeepingSink()
        made = generate(
            engine,
            requests(40, 3, 17),
            sampling=SamplingSpec(max_tokens=20),
            hooks=hooks,
            sink=sink,
            **options,
        )
        assert not any(g.error for g in made)
        return sink

    whole = run()
    some = run(shaping={"columns": (7, 0, 100)})
    means = run(shaping={"reduce": "mean"})
    last = run(positions="last")
    counted = run(shaping={"statistics": StatisticsOptions(threshold=0.5, rows=False)})
    for i, hook in itertools.product(range(3), hooks):
        rows = whole.rows(i, hook)
        assert torch.equal(some.rows(i, hook), rows[:, [7, 0, 100]])
        assert torch.allclose(means.rows(i, hook)[0], rows.mean(0), rtol=1e-4, atol=1e-5)
        assert torch.equal(last.rows(i, hook)[0], rows[-1])
        variance = rows.double().var(0, correction=0)
        assert torch.allclose(counted.rows(i, f"{hook}.variance")[0], variance, rtol=1e-9)
        over = (rows.abs() > 0.5).sum(0)
        assert torch.equal(counted.rows(i, f"{hook}.over")[0], over)


def test_noise_is_that_of_the_cpu() -> None:
    """A sampled token does not depend on the device, but where two are all but equally likely."""
    seeds = torch.tensor([3, -(1 << 62), 12345])
    index = torch.arange(50_000)[None]
    for step in (0, 1, 1000):
        here = gumbel(seeds, step, index)
        there = gumbel(seeds.cuda(), step, index.cuda()).cpu()
        assert torch.allclose(here, there, rtol=1e-13, atol=1e-13)
        assert torch.equal(here.argmax(-1), there.argmax(-1))


def test_the_sampler_chooses_as_on_the_cpu_and_for_each_row_alone() -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.95, "presence_penalty": 0.5},
        {"temperature": 30.0, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.2},
        {"logit_bias": {"4": 2.0}, "min_tokens": 4},
    ]
    logits = torch.randn(4, len(ways), 20_000, generator=torch.Generator().manual_seed(0)) * 3
    chosen: dict[str, list[int]] = {}
    for name, device in (("cpu", "cpu"), ("together", "cuda"), ("alone", "cuda")):
        sampler = Sampler(torch.device(device), logits.shape[-1])
        slots = [
            sampler.open(SamplingSpec(**way), seed=i, prompt=[3, 4], most=4, ends=[1])
            for i, way in enumerate(ways)
        ]
        tokens = [-1] * len(ways)
        chosen[name] = []
        for step, of_step in enumerate(logits.to(device)):
            rows = [SampledRow(slot, step, token) for slot, token in zip(slots, tokens, strict=True)]
            groups = [[i] for i in range(len(ways))] if name == "alone" else [list(range(len(ways)))]
            for some in groups:
                made = sampler.choose(of_step[some], [rows[i] for i in some]).read()
                for i, token in zip(some, made, strict=True):
                    tokens[i] = token.token
            chosen[name] += tokens
    assert chosen["alone"] == chosen["together"] == chosen["cpu"]


def test_edits_are_those_of_the_cpu(engine: Engine) -> None:
    vector = torch.linspace(-1, 1, engine.structure.hidden_size).numpy()
    edits = (
        Edit(hook="resid_post.1", op="add", vector=vector, coefficient=2.0, positions="generated"),
        Edit(hook="resid_post.3", op="project_out", vector=vector),
        Edit(hook="mlp_out.4", op="scale", coefficient=0.5, positions=TokenRange(start=1, stop=20)),
    )
    steered = [replace(r, edits=edits if i % 2 else ()) for i, r in enumerate(requests(40, 3, 17, 9))]
    hooks = ["resid_post.1", "resid_post.3", "mlp_out.4", "resid_post.5"]
    hf: Any = copy.deepcopy(engine.model.hf).cpu()
    on_cpu = Engine(wrap_model(hf, engine.model.tokenizer, name="cpu"))
    sinks = {one: KeepingSink() for one in (engine, on_cpu)}
    made = [
        generate(one, steered, sampling=SamplingSpec(max_tokens=12), hooks=hooks, sink=sink)
        for one, sink in sinks.items()
    ]
    assert [g.generated_ids for g in made[0]] == [g.generated_ids for g in made[1]]
    for i, hook in itertools.product(range(4), hooks):
        there, here = (sink.rows(i, hook) for sink in sinks.values())
        assert torch.allclose(there, here, rtol=1e-3, atol=1e-3), hook


def test_a_cancelled_run_leaves_nothing_on_the_device(engine: Engine) -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    ends: list[int] = []

    def watch(index: int, generated: int) -> bool:
        ends.append(generated)
        return False

    made = generate(
        engine,
        requests(40, 3),
        sampling=SamplingSpec(max_tokens=64),
        hooks=list(engine.structure.hooks),
        sink=KeepingSink(),
        drop=watch,
        stop=lambda: max(ends, default=0) >= 20,
    )
    assert {g.finish_reason for g in made} == {"cancelled"}
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before < 1 << 20


def test_out_of_memory_is_survived(engine: Engine) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + (48 << 20)) / total)
    try:
        made = generate(
            engine,
            requests(*[2000] * 16),
            sampling=SamplingSpec(max_tokens=4),
            hooks=["embed"],
            sink=KeepingSink(),
        )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert any(g.error is None for g in made) or all("cuda_allocated" in str(g.error) for g in made)
    after = generate(engine, requests(5), sampling=SamplingSpec(max_tokens=4))
    assert after[0].finish_reason == "length"
