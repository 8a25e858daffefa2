"""Capture specs from the engine to the stored session, against everything that the model computed."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from actograph import tensor_files
from actograph.contract import hooks as grammar
from actograph.contract.errors import ActographError, CaptureFailed
from actograph.contract.models import ModelStructure
from actograph.contract.specs import CaptureSpec, SamplingSpec
from evals import plans
from storage.artifacts.factory import open_store
from storage.artifacts.local import LocalStore
from storage.artifacts.store import ArtifactStore
from storage.index.ids import new_session_id
from storage.queue.leases import LeasedSample
from storage.sessions.writer import SessionReader
from tests.support.local_engine import ListedRun, LocalEngine
from tests.support.one_turn import one_turn
from worker.engine.engine import Engine
from worker.engine.messages import Generation, Request, RunOptions
from worker.sample.conversation import Conversation
from worker.sample.provenance import Provenance
from worker.sample.recorder import Recorded, SampleRecorder
from worker.sample.token_rules import named, rule_of
from worker.text.segments import Markup

pytestmark = pytest.mark.integration

PROMPTS = ("Tom has 34 books and Mia has 57 books. How many do they have in total?", "The cat", "12+13?")
SAMPLING = SamplingSpec(max_tokens=20)
SMALL_SHARDS = RunOptions(shard_bytes=2000)
POINTS = ["embed", "resid_post.1", "mlp_in.0", "logits"]


@dataclass
class Captured:
    """The sessions of one run, one per prompt."""

    structure: ModelStructure
    store: ArtifactStore
    generations: list[Generation]
    outcomes: list[Recorded | ActographError]

    def reader(self, sample: int) -> SessionReader:
        outcome = self.outcomes[sample]
        assert isinstance(outcome, Recorded), outcome
        return SessionReader(self.store, outcome.session_id)

    def folder(self, sample: int) -> Path:
        assert isinstance(self.store, LocalStore)
        return self.store.root / "sessions" / self.reader(sample).session_id

    def tensor(self, sample: int, name: str) -> torch.Tensor:
        reader = self.reader(sample)
        piece = reader.rows(name, 0, reader.tensor_info(name).shape[0])
        return torch.from_numpy(tensor_files.value_array(piece.dtype, piece.shape, piece.data).copy())


Capture = Callable[..., Captured]


@pytest.fixture
def capture(engine: Engine, tmp_path: Path) -> Capture:
    """Run a capture spec over `PROMPTS` in one batch and store it."""

    def run(
        *, texts: tuple[str, ...] = PROMPTS, options: RunOptions = SMALL_SHARDS, **fields: Any
    ) -> Captured:
        spec = CaptureSpec.model_validate({"hooks": POINTS} | fields)
        names = grammar.expand(spec.points, spec.layers, spec.hooks, engine.structure)
        origin = Provenance(
            structure=engine.structure, tokenizer_sha256="t", template_sha256=None, capture=spec,
            hooks=names, markup=Markup(engine.model.tokenizer),
        )  # fmt: skip
        leases = [
            LeasedSample(
                id=f"smp_{i:032x}", job_id="job_" + "1" * 32, sample_index=i, condition="", epoch=0,
                input={}, seed=i, token=1, session_id=new_session_id(),
            )
            for i in range(len(texts))
        ]  # fmt: skip
        store = open_store((tmp_path / "store").as_uri())
        recorders = [SampleRecorder(store, lease, origin, sampling=SAMPLING) for lease in leases]
        requests = []
        for i, text in enumerate(texts):
            conversation = Conversation(origin.markup)
            begun = conversation.begin(tuple(engine.model.tokenizer(text)["input_ids"]))
            rule = None
            if named(origin.captured) is None:
                rule = rule_of(origin.captured, conversation, begun, origin.markup)
            requests.append(
                Request(
                    key=str(i),
                    prompt_ids=begun.ids,
                    seed=i,
                    sampling=SAMPLING,
                    capture=origin.asked,
                    rule=rule,
                )
            )
        run = ListedRun(requests, lambda key, rows: recorders[int(key)].write(rows))
        generations = run.through(LocalEngine(engine), options)
        outcomes: list[Recorded | ActographError] = []
        for recorder, generation in zip(recorders, generations, strict=True):
            try:
                outcomes.append(recorder.finish(one_turn(generation, origin.markup)))
            except ActographError as error:
                recorder.reset()
                outcomes.append(error)
        return Captured(engine.structure, store, generations, outcomes)

    return run


def test_a_feature_that_a_raw_module_lacks_fails_with_its_width(engine: Engine, capture: Capture) -> None:
    location = next(name for name in engine.structure.module_locations if name.endswith("k_proj.output"))
    for made in capture(hooks=[location], features={"first": 5000}).generations:
        assert isinstance(made.error, CaptureFailed)
        assert re.search(rf"{location} has \d+ features .*feature 4999", made.error.message)


def test_a_token_beyond_the_end_fails_its_sample_and_no_other(capture: Capture) -> None:
    shortest = min(PROMPTS, key=len)
    done = capture(texts=(PROMPTS[0], shortest), positions=[0, len(PROMPTS[0]) // 2])
    reached = [len(g.prompt_ids) + len(g.generated_ids) - 1 > len(PROMPTS[0]) // 2 for g in done.generations]
    assert reached == [True, False]
    done.reader(0).verify()
    failed = done.outcomes[1]
    assert isinstance(failed, CaptureFailed)
    assert f"token {len(PROMPTS[0]) // 2}" in failed.message
    assert next(iter(done.store.list_prefixes("sessions"))).prefix.endswith(done.reader(0).session_id)
    assert len(list(done.store.list_prefixes("sessions"))) == 1


#: what a spec may choose in each of its fields
CHOICES: dict[str, list[Any]] = {
    "positions": [
        "all", "prompt", "generated", "last", "last_prompt", "think", "answer", "tool_call",
        ["prompt", "think"], ["tool_result", "answer"], {"stride": 1}, {"stride": 7}, {"start": 2, "stop": 9},
        [0], [-1, 3, 0],
    ],
    "reduce": ["none", "mean", "max", "last"],
    "features": [None, {"first": 1}, {"first": 24}, {"indices": [23]}, {"indices": [20, 3, 11]}],
    "stats": [None, True, {"threshold": 0.5}, {"tensors": False}],
    "dtype": ["model", "float32", "float16", "bfloat16"],
    "hooks": [
        ["resid_post.1"], ["embed", "logits"], ["mlp_in.0", "lm_head.input", "final_norm"],
        ["model.layers.0.mlp.act_fn.output", "model.layers.1.self_attn.k_proj.output"],
        ["resid_pre.1", "resid_post.0", "logits"],
    ],
    "options": [SMALL_SHARDS, RunOptions()],
}  # fmt: skip
#: positions whose rows are known from the numbers of tokens alone
COUNTABLE: list[Any] = [
    "all", "prompt", "generated", "last", "last_prompt", {"stride": 1}, {"stride": 7},
    {"start": 2, "stop": 9}, [0], [-1, 3, 0],
]  # fmt: skip
THINKING = ("12+13?<think>\n", "The cat", "Tom has 34 books.<think>\n9+2=11</think>")
_DTYPES = {
    "model": torch.float32,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def combinations(count: int) -> list[dict[str, Any]]:
    """So many specs, in which every choice occurs: all of a field's come before one comes again."""
    draw = random.Random(12)
    orders: dict[str, list[Any]] = {field: [] for field in CHOICES}
    for field, choices in CHOICES.items():
        while len(orders[field]) < count:
            orders[field] += draw.sample(choices, len(choices))
    found = [{field: order[number] for field, order in orders.items()} for number in range(count)]
    for spec in found:
        if spec["stats"] == {"tensors": False}:
            spec["reduce"] = "none"  # else nothing would be stored
    assert all(any(spec[field] == one for spec in found) for field in CHOICES for one in CHOICES[field])
    return found


def rows_meant(positions: Any, prompt: int, generated: int, names: list[str]) -> list[int]:
    """The tokens of a spec's positions, written a second time; `names` has the segment of each token."""
    ran = list(range(prompt + generated - 1))
    match positions:
        case "all":
            return ran
        case "generated":
            return ran[prompt:]
        case "last":
            return ran[-1:]
        case "last_prompt":
            return [prompt - 1]
        case {"stride": k}:
            return ran[::k]
        case {"start": start, "stop": stop}:
            return ran[start:stop]
        case [int(), *_]:
            return sorted({t if t >= 0 else prompt + t for t in positions})
        case str():
            return [t for t in ran if names[t] == positions]
    return [t for t in ran if names[t] in positions]


def test_every_choice_works_with_every_other_and_means_what_it_says(capture: Capture) -> None:
    """Against everything that the model computed, kept by one capture without any choice."""
    whole = capture(texts=THINKING, hooks=sorted({h for hooks in CHOICES["hooks"] for h in hooks}))
    segments: set[str] = set()
    for spec in combinations(20):
        part = capture(texts=THINKING, **spec)
        assert [g.generated_ids for g in part.generations] == [g.generated_ids for g in whole.generations]
        for sample, generation in enumerate(part.generations):
            reader = part.reader(sample)
            reader.verify()
            check_bytes(part, sample, spec)
            names = [s.name for s in reader.manifest.segments for _ in range(s.start, s.stop)]
            segments |= set(names)
            prompt, generated = len(generation.prompt_ids), len(generation.generated_ids)
            tokens = rows_meant(spec["positions"], prompt, generated, names)
            for hook in spec["hooks"]:
                every = whole.tensor(sample, hook)
                low = prompt + generated - 1 - len(every)
                mine = [t for t in tokens if t >= low]
                rows = every[[t - low for t in mine]]
                if spec["features"] is not None:
                    first, indices = spec["features"].get("first", 0), spec["features"].get("indices")
                    rows = rows[:, indices or list(range(first))]
                check_statistics(part, sample, hook, spec["stats"], rows)
                if isinstance(spec["stats"], dict) and not spec["stats"].get("tensors", True):
                    assert hook not in reader.manifest.tensors
                    continue
                assert list(reader.tokens_of_rows(hook)) == mine, (spec, hook)
                if spec["reduce"] != "none":
                    info = reader.tensor_info(hook)
                    assert (info.summary, info.over) == (spec["reduce"], len(mine))
                got = part.tensor(sample, hook)
                dtype = _DTYPES.get(spec["dtype"], torch.float32)
                if spec["reduce"] != "none" and len(rows):
                    sums = {"mean": rows.mean(0), "max": rows.amax(0), "last": rows[-1]}
                    rows = sums[spec["reduce"]][None]
                # numpy has no bfloat16, so the reader gives such rows as float32
                assert got.dtype in (dtype, torch.float32)
                close = {torch.bfloat16: 1e-2, torch.float16: 1e-3}.get(dtype, 1e-5)
                exact = spec["reduce"] != "mean"
                want = rows.to(dtype)
                assert got.shape == want.shape, (spec, hook)
                same = torch.equal(got.float(), want.float())
                assert same if exact else torch.allclose(got.float(), want.float(), rtol=close, atol=close), (
                    spec, hook,
                )  # fmt: skip
    assert {"think", "answer"} <= segments


def check_statistics(part: Captured, sample: int, hook: str, stats: Any, rows: torch.Tensor) -> None:
    """Statistics are of the rows as computed, whatever `dtype` and `reduce` say."""
    names = part.reader(sample).manifest.tensors
    if stats is None:
        assert not any(name.startswith(f"{hook}.") for name in names)
        return
    assert (f"{hook}.over" in names) == (isinstance(stats, dict) and "threshold" in stats)
    if not len(rows):
        assert names[f"{hook}.mean"].shape[0] == 0
        return
    x = rows.double()
    want = {"mean": x.mean(0), "variance": x.var(0, unbiased=False), "min": x.amin(0), "max": x.amax(0)}
    want["rms"] = x.square().mean(0).sqrt()
    if f"{hook}.over" in names:
        want["over"] = (x.abs() > stats["threshold"]).sum(0)
    assert part.tensor(sample, f"{hook}.count").tolist() == [[len(rows)]]
    for name, value in want.items():
        got = part.tensor(sample, f"{hook}.{name}").double()
        assert torch.allclose(got, value.double()[None], rtol=1e-6, atol=1e-9), name


def check_bytes(part: Captured, sample: int, spec: dict[str, Any]) -> None:
    """The estimate agrees with the stored tensors to the byte; manifest and headers are text."""
    outcome, generation = part.outcomes[sample], part.generations[sample]
    assert isinstance(outcome, Recorded)
    capture = CaptureSpec.model_validate({name: spec[name] for name in CHOICES if name != "options"})
    tokens = {"prompt_tokens": len(generation.prompt_ids), "generated_tokens": len(generation.generated_ids)}
    if spec["positions"] in COUNTABLE:
        told = plans.tensor_bytes(part.structure, spec["hooks"], capture, **tokens)
        assert told == sum(tensor.nbytes for tensor in outcome.tensors.values()), spec
        whole = plans.stored_bytes(part.structure, spec["hooks"], capture, **tokens)
        stored = sum(file.bytes for file in outcome.files)
        texts = 2048 + 96 * len(outcome.tensors) + 512 * len(outcome.files)
        assert abs(whole - stored) < texts, spec


def test_what_the_head_takes_in_begins_at_the_last_prompt_token(engine: Engine, capture: Capture) -> None:
    """It is the last norm's tensor, and yet has fewer rows; alone and beside it."""
    for hooks in (["lm_head.input"], ["lm_head.input", "final_norm"]):
        done = capture(texts=PROMPTS[:1], hooks=hooks)
        (made,) = done.generations
        prompt, generated = len(made.prompt_ids), len(made.generated_ids)
        info = done.reader(0).tensor_info("lm_head.input")
        assert (info.first_row, info.shape) == (prompt - 1, (generated, engine.structure.hidden_size))
    assert len(done.tensor(0, "final_norm")) == prompt - 1 + generated
