"""Cases of the engine on a GPU; prints results as JSON: `python -m tests.support.fake_cuda_cases CASE ...`.

They run in a process of their own, since `fake_cuda` patches torch.
`tests/integration/worker/test_fake_cuda.py` asserts what must hold. The result of a case that fails is
`{"raised": traceback}`.
"""

import gc
import json
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from actograph.contract.errors import ModelRefused
from actograph.contract.interventions import Op
from actograph.contract.row_selection import NamedPositions, Stride
from actograph.contract.saes import SaeConfig
from actograph.contract.specs import Dtype, SamplingSpec
from evals.plans import STEP_TOKENS
from storage.saes.sae_format import shapes_of
from tests.support import fake_cuda
from tests.support.fake_cuda import GB, Card, Pass, card, head_points, points, world
from tests.support.fake_cuda_process import NO_GUARDS
from tests.support.token_choosers import rule_for
from worker.engine import forwards
from worker.engine.capture import encoders
from worker.engine.engine import Engine
from worker.engine.forwards import Forwards
from worker.engine.locations import ModelHooks
from worker.engine.messages import (
    Capture,
    Edit,
    Encoding,
    EngineWork,
    Generation,
    Readout,
    ReadoutLimit,
    Reduce,
    Request,
    RunOptions,
    StatisticsOptions,
)
from worker.engine.model import from_config
from worker.engine.model.devices import current
from worker.engine.model.memory import MemoryWatch, peak_over
from worker.engine.model_state import ModelState
from worker.engine.packed import decoding
from worker.engine.pass_memory import measure_prompts

Hooks = Sequence[str]
#: sampling without a grammar, in the forms that cost something of their own
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.0},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "penalties": {
        "temperature": 0.8,
        "top_p": 0.9,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.2,
        "repetition_penalty": 1.1,
        "min_tokens": 3,
        "logit_bias": {"5": 1.0},
    },
    "top_k": {"temperature": 0.8, "top_k": 50, "min_p": 0.01},
}


#: what the first engine of a model's shape and dtype has verified, whatever its depth
_verified: dict[tuple[str, str], Any] = {}


def engine_of(hooks: ModelHooks) -> Engine:
    """An engine around a fake model, whose structure is known: `discover` compares numbers."""
    engine = Engine.__new__(Engine)
    engine.model, engine.hooks, engine.structure = hooks.model, hooks, hooks.structure
    engine.forwards, engine.state, engine._lock = Forwards(hooks), ModelState(hooks), threading.Lock()
    engine.others, engine._used, engine._watch = None, {}, None
    kind = hooks.model.name, hooks.structure.dtype
    with current(hooks.model.device):
        engine.forwards._verified = _verified.get(kind) or engine.forwards._verified
    _verified[kind] = engine.forwards._verified
    engine._current, engine._ended = None, EngineWork()
    return engine


class Requests:
    """Source, control, results and sink of a run that ends after some turns."""

    def __init__(self, waves: Iterable[Sequence[Request]], turns: int) -> None:
        self._waves = [list(wave) for wave in waves]
        self._turns, self._pulled = turns, 0
        self.made: dict[str, Generation] = {}

    @property
    def exhausted(self) -> bool:
        return not any(self._waves)

    def pull(self, room: int, *, urgent: int, wait: float) -> Sequence[Request]:
        """Take of the first wave, and of the next one when all of the first have ended."""
        if self._waves and not self._waves[0] and len(self.made) == self._pulled:
            self._waves.pop(0)
        if not self._waves:
            return []
        pulled, self._waves[0] = self._waves[0][:room], self._waves[0][room:]
        self._pulled += len(pulled)
        return pulled

    def stopped(self) -> bool:
        return self._turns <= 0

    def dropped(self, key: str) -> bool:
        return False

    def beat(self) -> None:
        self._turns -= 1

    def started(self, key: str, generated_ids: Sequence[int]) -> None: ...

    def done(self, generation: Generation) -> None:
        self.made[generation.key] = generation

    def write(self, key: str, rows: Mapping[str, Any]) -> None: ...

    @property
    def errors(self) -> list[str]:
        return sorted({str(one.error) for one in self.made.values() if one.error is not None})


def ask(
    i: int,
    *,
    prompt: int = 16,
    tokens: int = 400,
    hooks: Hooks = (),
    top_logprobs: int | None = None,
    keep: Stride | NamedPositions = "all",
    reduce: Reduce = "none",
    statistics: StatisticsOptions | None = None,
    edits: Sequence[Edit] = (),
    stored: Dtype = "model",
    **sampling: Any,
) -> Request:
    ids = tuple((i * 97 + j * 7) % 1000 + 2 for j in range(prompt))
    named: NamedPositions = "all" if isinstance(keep, Stride) else keep
    capture = Capture(hooks=tuple(hooks), positions=named, reduce=reduce, statistics=statistics, dtype=stored)
    return Request(
        key=str(i),
        prompt_ids=ids,
        seed=i,
        max_tokens=tokens,
        top_logprobs=top_logprobs,
        sampling=SamplingSpec(**{"temperature": 0.0, "ignore_eos": True} | sampling),
        capture=capture if hooks else None,
        rule=rule_for(ids, keep) if isinstance(keep, Stride) else None,
        edits=tuple(edits),
    )


def run(
    engine: Engine,
    *waves: Sequence[Request],
    turns: int = 6,
    graphs: bool = False,
    slots: int = 0,
    shard_bytes: int = 256 << 20,
    keep: bool = False,
) -> Requests:
    """Run requests.

    Args:
        keep: the engine keeps the memory of its runs.
    """
    card().passes.clear()
    requests = Requests(waves, turns)
    options = RunOptions(slots=slots, cuda_graphs=graphs, shard_bytes=shard_bytes)
    engine.run(source=requests, control=requests, results=requests, sink=requests, options=options)
    if not keep:
        engine.forwards.release()
    return requests


def decode_passes() -> list[Pass]:
    return [one for one in card().passes if one.kind == "decode"]


def admission(shape: str, slots: int = 256, cards: Sequence[int] = (16, 24, 80)) -> list[dict[str, Any]]:
    """On cards of these sizes in GB: the errors and the peak of runs of so many requests."""
    found = []
    with world(shape) as (hooks, on):
        engine = engine_of(hooks)
        sizes = [size for size in cards if on.live < (size - 2) * GB]
        for size in sizes:
            on.size = size * GB
            engine.forwards.release()
            if size == sizes[0]:  # a pass takes the same on all cards
                engine.forwards.plan(RunOptions(slots=slots))
            captures: dict[str, Hooks] = {"nothing": (), "one": points(hooks)[:1], "all": points(hooks)}
            for name, captured in captures.items():
                on.peak = on.live
                asked = [ask(i, prompt=2, tokens=32, hooks=captured) for i in range(slots)]
                made = run(engine, asked, turns=2, slots=slots)
                found.append(
                    {
                        "card": size,
                        "capture": name,
                        "rows": max(one.rows for one in decode_passes()),
                        "errors": made.errors,
                        "left": on.size - on.peak,
                    }
                )
    return found


def counts(
    shape: str,
    *,
    captured_of: Callable[[ModelHooks], Hooks] = lambda hooks: (),
    dtype: torch.dtype = torch.bfloat16,
    stored: Dtype = "model",
) -> dict[str, Any]:
    """Launches, stalls and hidden temporaries of a decode pass of 64 requests; the launches at two depths."""
    launches = {}
    for layers in (2, 4):
        with world(shape, layers=layers, dtype=dtype, heads=captured_of is head_points) as (hooks, _):
            captured = captured_of(hooks)
            run(
                engine_of(hooks),
                [ask(i, prompt=2, hooks=captured, stored=stored) for i in range(64)],
                turns=2,
            )
            last = decode_passes()[-1]
            launches[layers] = last.inside["launch"]
    per_layer = (launches[4] - launches[2]) // 2
    return {
        "launches per layer": per_layer,
        "launches beside layers": launches[2] - 2 * per_layer,
        "hidden temporaries": last.counts["hidden temporary"],
        "stalls inside": last.stalls_inside,
    }


def stalls() -> dict[str, Any]:
    """Blocking copies and waits of a decode pass of 8 and of 64 requests, and launches beside the forward.

    "passes late": of each wait, how many passes the host had launched after the one that it waited for.
    By the requests' sampling; in "mixed" each one has another, and every second one asks for log
    probabilities.
    """
    found: dict[str, Any] = {}
    ways = list(SAMPLING.values())
    with world("0.6b", layers=1) as (hooks, _):
        for name in (*SAMPLING, "mixed"):
            for rows in (8, 64):
                asked = []
                for i in range(rows):
                    mixed = {"top_logprobs": (None, 5)[i % 2], **ways[i % len(ways)]}
                    asked.append(ask(i, prompt=2, hooks=points(hooks), **SAMPLING.get(name, mixed)))
                run(engine_of(hooks), asked, turns=4)
                last = decode_passes()[-2]  # the tokens of the last one are read when the run ends
                found.setdefault(name, {})[rows] = {
                    "all": last.stalls,
                    "inside": last.stalls_inside,
                    "launches beside": last.counts["launch"] - last.inside["launch"],
                    "passes late": last.late,
                }
    return found


class WeightsFile:
    """Weights of an SAE, as `safe_open` gives them; fake tensors have no file."""

    shapes: ClassVar[dict[str, tuple[int, ...]]] = {}

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> "WeightsFile":
        return self

    def __exit__(self, *_: object) -> None: ...

    def get_tensor(self, name: str) -> torch.Tensor:
        return torch.empty(self.shapes[name])


def computed() -> dict[str, Any]:
    """Runs of 8 requests that store rows, latents or readouts, or end by a readout; eager and replayed."""
    found: dict[str, Any] = {}
    with world("0.6b", layers=1) as (hooks, on):
        hook, width = points(hooks)[0], hooks.structure.hidden_size
        config = SaeConfig(architecture="standard", d_in=width, d_sae=4096)
        WeightsFile.shapes = shapes_of(config)
        encoding = Encoding(name="sae:s", hook=hook, top=64, config=config, sha256="s", path="")
        readouts = tuple(
            Readout(name=f"r{i}", hook=hook, sha256=str(i), vector=np.ones(width, np.float32))
            for i in range(2)
        )
        ways: dict[str, dict[str, Any]] = {
            "rows": {"capture": Capture(hooks=(hook,))},
            "latents": {"capture": Capture(hooks=(), encodings=(encoding,))},
            "readouts": {"capture": Capture(hooks=(), readouts=readouts)},
            "limits": {
                "capture": Capture(hooks=(), readouts=readouts),
                "stops": (ReadoutLimit(name="r0", above=1.0),),
            },
        }
        before, engine = on.live, engine_of(hooks)
        with mock.patch.object(encoders, "safe_open", WeightsFile):
            for name, way in ways.items():
                for replayed in (False, True):
                    on.graphs.clear()
                    asked = [replace(ask(i, prompt=2, tokens=6), **way) for i in range(8)]
                    made = run(engine, asked, turns=60, graphs=replayed)
                    passes = decode_passes()
                    found.setdefault(name, {})["replayed" if replayed else "eager"] = {
                        "errors": made.errors,
                        # the graphs of no captures are captured as the last request ends
                        "launches inside": max(one.inside["launch"] for one in passes[:-1]),
                        "replays": sum(one.counts["replay"] > 0 for one in passes) / len(passes),
                        "inside": max(one.stalls_inside for one in passes),
                        "stalls": max(one.stalls for one in passes[:-1]),
                        "hidden temporaries": max(one.counts["hidden temporary"] for one in passes),
                        "captures in passes": on.captured_in_passes,
                        "left over": on.live - before,
                    }
    return found


def every_bucket() -> dict[str, Any]:
    """`graphs` with as many graphs as on a real card."""
    with mock.patch.object(decoding, "_BUCKETS", fake_cuda.REAL_BUCKETS):
        return graphs()


def graphs() -> dict[str, Any]:
    """Captures of graphs by waves, orders of plans and runs, and launches outside them."""
    found: dict[str, Any] = {}
    with world("0.6b", layers=1) as (hooks, on):
        one, two = points(hooks)[:1], points(hooks)
        engine = engine_of(hooks)
        engine.keep(RunOptions(cuda_graphs=True))
        found["at load"] = len(on.graphs)
        # in "orders" the plans of a pass come in another order, as requests end and others begin
        plans = {
            "waves": (two, two),
            "orders": (one, two),
            "waves again": (two, two),
            "orders again": (two, one),
        }
        for name, (even, odd) in plans.items():
            on.graphs.clear()
            waves = [
                [ask(8 * w + i, tokens=6, hooks=(even, odd)[(i + w) % 2]) for i in range(8)] for w in range(4)
            ]
            found[name] = _replays(on, run(engine, *waves, turns=60, graphs=True, keep=True))
        engine.forwards.release()
        found["unnamed"] = on.unnamed
        found["captures while a drain runs"] = on.captured_in_passes
    return found


def edit(hooks: ModelHooks, hook: str, op: Op, seed: int) -> Edit:
    vector = np.full(hooks.width_of(hook), 1 + seed, np.float32)
    given = None if op in ("zero", "scale") else vector
    return Edit(hook=hook, op=op, coefficient=0.5, positions="generated", vector=given)


def steering() -> dict[str, Any]:
    """Captures of graphs and launches outside them, of requests with edits, captures and neither."""
    found: dict[str, Any] = {}
    with world("0.6b", layers=2) as (hooks, on):
        engine = engine_of(hooks)
        engine.keep(RunOptions(cuda_graphs=True))
        found["at load"] = len(on.graphs)
        first, second, *_ = points(hooks)
        ways: dict[str, list[tuple[str, Op]]] = {
            "add": [(first, "add")],
            "other vectors": [(first, "add")],
            "two of each request": [(first, "add"), (first, "project_out"), (second, "replace")],
            "add again": [(first, "add")],
            "scale": [(second, "scale")],
        }
        for number, (name, edits) in enumerate(ways.items()):
            on.graphs.clear()
            waves = [
                [
                    ask(
                        8 * w + i,
                        tokens=6,
                        hooks=points(hooks)[:1] if i % 2 else (),
                        edits=[edit(hooks, *one, 100 * number + i) for one in edits] if i % 4 else [],
                    )
                    for i in range(8)
                ]
                for w in range(3)
            ]
            made = run(engine, *waves, turns=60, graphs=True, keep=True)
            found[name] = _replays(on, made) | {
                "launches inside": sum(one.inside["launch"] for one in decode_passes()),
                # the tokens of a wave's last pass are read before another one
                "stalls": max(one.stalls for one in decode_passes()),
            }
        found["captures while a drain runs"] = on.captured_in_passes
        found["unnamed"] = on.unnamed
    return found


def kept_rows() -> dict[str, Any]:
    """Launches of decode passes with one plan of hooks, by what requests keep of the rows."""
    choices: dict[str, dict[str, Any]] = {
        "all": {},
        "some tokens": {"keep": Stride(stride=3)},
        "the newest": {"keep": "last"},
        "of every second request": {},
        "none": {"keep": "prompt"},
    }
    found: dict[str, Any] = {}
    with world("0.6b", layers=2) as (hooks, on):
        for replayed in (False, True):
            for name, choice in choices.items():
                asked = [
                    ask(i, prompt=2, hooks=points(hooks), **choice)
                    if i % 2 or name != "of every second request"
                    else ask(i, prompt=2)
                    for i in range(8)
                ]
                on.graphs.clear()
                run(engine_of(hooks), asked, turns=5, graphs=replayed)
                passes = decode_passes()[1:]  # the first one may capture a graph
                way = found.setdefault("replayed" if replayed else "eager", {})
                way[name] = {
                    "inside": sorted({one.inside["launch"] for one in passes if one.inside["launch"]}),
                    "replays": sum(one.counts["replay"] for one in passes),
                    "captures in passes": on.captured_in_passes,
                }
    return found


def leaving() -> dict[str, Any]:
    """Copies and waits of runs whose rows leave: full blocks, last ones, sums and moments."""
    statistics = {"statistics": StatisticsOptions(threshold=1.0)}
    choices: dict[str, dict[str, Any]] = {
        "rows": {},
        "early": {},
        "moments and rows": statistics,
        "means": {"reduce": "mean"},
        "newest": {"keep": "last"},
    }
    found: dict[str, Any] = {}
    with world("0.6b", layers=2) as (hooks, on):
        plain = _host_costs(on, run(engine_of(hooks), [ask(0, prompt=120, tokens=12)], turns=99))
        for name, choice in choices.items():
            asked = [ask(0, prompt=120, tokens=12, hooks=points(hooks), **choice)]
            shard = 1 << 14 if name == "early" else 256 << 20
            made = run(engine_of(hooks), asked, turns=99, shard_bytes=shard)
            costs = _host_costs(on, made)
            found[name] = costs | {what: costs[what] - plain[what] for what in ("waits", "copies")}
    return found


def _host_costs(on: Card, made: Requests) -> dict[str, Any]:
    return {
        "errors": made.errors,
        "waits": sum(one.stalls for one in on.passes),
        "copies": sum(one.counts["d2h async"] for one in on.passes),
        "hidden temporaries": sum(one.counts["hidden temporary"] for one in on.passes),
    }


def _replays(on: Card, made: Requests) -> dict[str, Any]:
    passes = decode_passes()
    return {
        "captures": len(on.graphs),
        "passes": len(passes),
        "replays": sum(one.counts["replay"] > 0 for one in passes),
        "requests": len(made.made),
        "errors": made.errors,
    }


def failed_capture() -> dict[str, Any]:
    """A run with graphs on a model whose forward waits for the device, so that no graph can be captured."""
    with world("30b-a3b", layers=1) as (hooks, on):
        hooks.model.hf.config._experts_implementation = "eager"
        made = run(engine_of(hooks), [ask(i, tokens=3) for i in range(64)], turns=9, graphs=True)
        lost: dict[str, Any] = {"graphs": len(on.graphs), "errors": made.errors}
        reasons = [one.finish_reason for one in made.made.values()]
        return lost | {reason: reasons.count(reason) for reason in sorted(set(reasons))}


def passes() -> dict[str, Any]:
    """Passes of prompts of 16 to 12,000 tokens that come while others decode, by kind."""
    found: dict[str, Any] = {}
    with world("0.6b", layers=1) as (hooks, on):
        engine = engine_of(hooks)
        for name, size in (("large card", 80 * GB), ("small card", on.live + 2.25 * GB)):
            on.size = int(size)
            engine.forwards.plan(RunOptions(slots=16))
            on.peak = on.live
            lengths = (16, 100, 12_000, 1, 700)
            asked = [
                ask(i, prompt=lengths[i % 5], tokens=8, hooks=(points(hooks), ())[i % 2]) for i in range(10)
            ]
            made = run(engine, asked, turns=99, graphs=True, slots=6)
            kinds = "".join({"decode": "d", "prefill": "p"}.get(one.kind, one.kind) for one in on.passes[1:])
            found[name] = {
                "errors": made.errors,
                "prompt tokens": engine.forwards.prompt_tokens,
                "kinds": sorted(set(kinds)),
                "passes of prompts in a row": max(len(one) for one in kinds.split("d")),
                "replayed": sum(one.counts["replay"] for one in decode_passes()) / len(decode_passes()),
                # requests begin and end meanwhile
                "stalls": max(one.stalls for one in on.passes[1:-1]),
                "left": on.size - on.peak > GB,
            }
    return found


def returned_bytes() -> dict[str, Any]:
    """Bytes that a run, and a model's memory for runs, leave on the card, without a collection of garbage."""
    found: dict[str, Any] = {}
    gc.collect()
    gc.disable()  # main enables it again
    with world("0.6b", layers=2) as (hooks, on):
        for name, replayed in (("eager", False), ("graphs", True)):
            before = on.live
            engine = engine_of(hooks)
            engine.keep(RunOptions(cuda_graphs=replayed))
            kept = on.live
            statistics = StatisticsOptions(threshold=1.0)
            for captures in (points(hooks), points(hooks)[:1]):
                steered = [edit(hooks, points(hooks)[0], "add", 1)]
                asked = [ask(i, tokens=3, hooks=captures, edits=steered) for i in range(4)]
                asked += [ask(i, tokens=3, hooks=captures, statistics=statistics) for i in range(4, 6)]
                made = run(engine, asked, graphs=replayed, keep=True)
                assert not made.errors, made.errors
                del made
            found[f"runs, {name}"] = on.live - kept
            assert kept > before
            engine.forwards.release()
            found[f"unload, {name}"] = on.live - before
        engine = engine_of(hooks)
        before = on.live
        engine.forwards.plan(RunOptions(slots=16))
        found["plan"] = on.live - before
    return found


def memory() -> dict[str, Any]:
    """Memory of two runs, the larger one first, and of a watch on another card; bytes beyond the first."""
    found: dict[str, Any] = {}
    with world("0.6b", layers=2) as (hooks, on):
        engine = engine_of(hooks)
        before = on.live
        for requests in (64, 2):
            run(engine, [ask(i, tokens=3) for i in range(requests)], keep=True)
            used = engine.used["run"]
            found[f"{requests} requests"] = {name: size - before for name, size in used.items()}
            found[f"arena of {requests}"] = on.live - before
            # what another part of the program does to the peak between two runs must not count
            on.peak = on.size
        watch = MemoryWatch([torch.device("cuda", 1)])
        peak_over([torch.device("cuda", 1)], lambda: None)
        found["watch"] = {name: size - before for name, size in watch.end().items()}
        found["unnamed"] = on.unnamed
    return found


def choice(cases: Iterable[tuple[str, int]]) -> list[dict[str, int]]:
    """Bytes of the largest pass by model and slots; prompts are read in short ones."""
    found = []
    with mock.patch.object(forwards, "prompt_tokens", lambda *_: STEP_TOKENS):
        for shape, slots in cases:
            with world(shape, layers=1, size=300 * GB) as (hooks, _):
                engine = engine_of(hooks)
                engine.forwards.plan(RunOptions(slots=slots))
                taken = engine.forwards.pass_bytes or 0
                vocabulary = int(hooks.model.text_config.vocab_size)
                found.append({"rows": slots + 2, "vocabulary": vocabulary, "bytes": taken})
    return found


def prompts() -> list[dict[str, int]]:
    """Bytes of passes of prompts, and those that a config says."""
    found = []
    for shape in ("0.6b", "gemma2", "30b-a3b"):
        with world(shape, layers=1, size=300 * GB) as (hooks, _):
            config, own = hooks.model.hf.config, Forwards(hooks)
            taken = {n: measure_prompts(own._to_measure(n), n) for n in (STEP_TOKENS, 8 * STEP_TOKENS)}
        with torch.device("meta"):
            hf = AutoModelForCausalLM.from_config(
                config, dtype=torch.bfloat16, attn_implementation="eager"
            ).eval()
        # rows leave at the two points of a layer of this world, which are as wide as the stream
        step = from_config._forward(hf)[0] + STEP_TOKENS * config.hidden_size * 6
        found += [{"planned": step * n // STEP_TOKENS, "bytes": size} for n, size in taken.items()]
    return found


def refused() -> dict[str, str]:
    """The reasons for which a model is refused on cards that are too small for it."""
    found = {}
    with world("0.6b", layers=2) as (hooks, on):
        for name, more in (("passes", GB), ("keys", 1.5 * GB)):
            on.size = on.live + int(more)
            try:
                engine_of(hooks).forwards.plan(RunOptions())
            except ModelRefused as error:
                found[name] = str(error)
    return found


CASES: dict[str, Callable[[], Any]] = {
    "admission-0.6b": lambda: admission("0.6b"),
    "admission-0.6b-16gb": lambda: admission("0.6b", cards=[16]),
    "admission-8b": lambda: admission("8b"),
    "admission-30b-a3b": lambda: admission("30b-a3b"),
    # each request takes a block of the arena at least, and a card of 24 GB has some 80
    "admission-gemma2": lambda: admission("gemma2", slots=64),
    "counts-0.6b": lambda: counts("0.6b"),
    "counts-0.6b-capture": lambda: counts("0.6b", captured_of=points),
    "counts-0.6b-float8": lambda: counts("0.6b", captured_of=points, stored="float8_e4m3fn"),
    "counts-0.6b-heads": lambda: counts("0.6b", captured_of=head_points),
    "counts-30b-a3b": lambda: counts("30b-a3b"),
    "counts-gemma2": lambda: counts("gemma2"),
    "counts-0.6b-float32": lambda: counts("0.6b", dtype=torch.float32),
    "stalls": stalls,
    "graphs": graphs,
    "graphs-every-bucket": every_bucket,
    "computed": computed,
    "kept-rows": kept_rows,
    "leaving": leaving,
    "steering": steering,
    "failed-capture": failed_capture,
    "passes": passes,
    "returned-bytes": returned_bytes,
    "memory": memory,
    "prompts": prompts,
    "choice": lambda: choice([("0.6b", 16), ("0.6b", 64), ("gemma2", 16)]),
    "choice-256": lambda: choice([("0.6b", 256), ("gemma2", 64), ("gemma2", 256)]),
    "refused": refused,
}


def main() -> None:
    if not fake_cuda.available():
        print(f"torch {torch.__version__} has no device guards that fake CUDA tensors need", file=sys.stderr)
        sys.exit(NO_GUARDS)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    fake_cuda.install()
    # a shorter long prompt: attention takes no memory by its length, and full depth takes time here
    forwards.LONGEST_PROMPT = 1024  # type: ignore[attr-defined]
    print(json.dumps({name: _result(name) for name in sys.argv[1:]}))


def _result(name: str) -> Any:
    try:
        return CASES[name]()
    except Exception:  # noqa: BLE001 (it fails the tests that read it)
        return {"raised": traceback.format_exc()}
    finally:
        gc.enable()
        gc.collect()


if __name__ == "__main__":
    main()
