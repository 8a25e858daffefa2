"""The streaming engine against other ways to generate with capture, in batches of 16.

    python -m bench.streaming_drain [--samples 64] [--scale 0.3] [--rounds 3] [--json FILE]

A model of 12 layers and hidden size 512 with random weights, float32. Prompts and answers have lengths that
spread as those of GSM8K do; every way gives each sample the same number of tokens. Captured are two points of
every layer. `generate` captures as its users do it: forward hooks keep each step's tensor, and the rows of
each sample are cut out when the batch has ended. "nnsight" is a script as its documentation teaches it: a
loop over the steps that saves each point. "two-pass" generates, and then reads the texts again with hooks.
Rows are counted and dropped: the cost of storing is measured elsewhere. Packed ways run with weights in
oneDNN's layout, packed before the clock starts. The ways turn within each round; ratios are of CPU time, and
of wall time beside it.
"""

import argparse
import os
import random
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import nnsight
import torch
import transformers
from transformers import StoppingCriteria, StoppingCriteriaList

from actograph.contract.specs import SamplingSpec
from bench.capture_throughput import build
from bench.shapes import MID_54M
from tests.support.marks import median_and_quartiles, write_result
from worker.engine.engine import Engine
from worker.engine.requests import Generation, GenerationRequest, RowChunk
from worker.engine.runs import CapturePlan, RunPlan, RunRequest
from worker.engine.streaming.engine import StreamingEngine
from worker.engine.streaming.packing import pack, probe
from worker.engine.streaming.verification import verify
from worker.engine.tokens.model_inputs import left_padded

BATCH = 16
#: prompt and answer tokens: least, most, most frequent
PROMPTS, ANSWERS = (54, 154, 56), (43, 256, 150)


@dataclass(frozen=True)
class Measured:
    """One way in one round."""

    wall: float  # seconds
    cpu: float  # seconds
    rows: int  # captured


class Counter:
    """Source, sink, results and control of a run: hands requests out and counts rows."""

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        self._waiting = [RunRequest(request) for request in requests]
        self.rows = self.ended = 0

    @property
    def exhausted(self) -> bool:
        return not self._waiting

    def pull(self, room: int, *, idle: bool) -> Sequence[RunRequest]:
        taken, self._waiting = self._waiting[:room], self._waiting[room:]
        return taken

    def write(self, key: str, rows: Mapping[str, RowChunk]) -> None:
        self.rows += sum(chunk.tensor.shape[0] for chunk in rows.values())

    def reset(self, key: str) -> None:
        raise RuntimeError("the bench must not run out of memory")

    def done(self, request: GenerationRequest, generation: Generation) -> None:
        assert generation.error is None and len(generation.generated_ids) == request.max_tokens
        self.ended += 1

    def should_stop(self) -> bool:
        return False

    def should_drop(self, key: str) -> bool:
        return False

    def started(self, request: GenerationRequest, generated_ids: Sequence[int]) -> None:
        pass

    def progressed(self, steps: int) -> None:
        pass


class AtLength(StoppingCriteria):
    """Ends each row after its own number of tokens."""

    def __init__(self, prompt: int, lengths: Sequence[int]) -> None:
        self._ends = torch.tensor(lengths) + prompt

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **_: Any) -> torch.BoolTensor:
        return self._ends <= input_ids.shape[1]  # type: ignore[return-value]


def requests_of(samples: int, scale: float, vocabulary: int) -> list[GenerationRequest]:
    """Prompts of random tokens and answers of known length, scaled by `scale`."""
    draw = random.Random(0)
    made = []
    for i in range(samples):
        prompt = int(draw.triangular(*PROMPTS))
        answer = max(1, int(draw.triangular(*ANSWERS) * scale))
        ids = tuple(draw.randrange(3, vocabulary) for _ in range(prompt))
        made.append(GenerationRequest(key=f"s{i}", prompt_ids=ids, seed=i, max_tokens=answer))
    return made


def generated(engine: Engine, requests: Sequence[GenerationRequest], hooks: Sequence[str]) -> int:
    """`transformers.generate` in batches of 16; returns the captured rows."""
    hf: Any = engine.model.hf
    rows = 0
    kept: dict[str, list[torch.Tensor]] = {hook: [] for hook in hooks}
    handles = []
    for hook in hooks:
        path = engine.structure.hooks[hook].location.removesuffix(".output")

        def keep(_: Any, args: Any, output: Any, into: list[torch.Tensor] = kept[hook]) -> None:
            into.append((output[0] if isinstance(output, tuple) else output).clone())

        handles.append(hf.get_submodule(path).register_forward_hook(keep))
    for start in range(0, len(requests), BATCH):
        batch = requests[start : start + BATCH]
        ids, mask = left_padded(engine.model, batch)
        lengths = [request.max_tokens or 0 for request in batch]
        stop = StoppingCriteriaList([AtLength(ids.shape[1], lengths)])
        with torch.inference_mode():
            hf.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=max(lengths),
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                stopping_criteria=stop,
            )
        for hook in hooks:
            rows += cut([torch.cat(kept[hook], dim=1)], batch, ids.shape[1])
            kept[hook].clear()
    for handle in handles:
        handle.remove()
    return rows


def wrapped(engine: Engine) -> Any:
    """The same weights in a model of nnsight's own: the engine's hands out only what the engine reads."""
    hf: Any = engine.model.hf
    plain = type(hf)(hf.config)
    plain.load_state_dict(hf.state_dict())
    plain.generation_config.eos_token_id = None
    return nnsight.TransformersModel(
        plain.eval(), task="text-generation", dispatch=True, tokenizer=engine.model.tokenizer
    )


def scripted(engine: Engine, lm: Any, requests: Sequence[GenerationRequest], hooks: Sequence[str]) -> int:
    """A script of nnsight's users in batches of 16; returns the captured rows."""
    points = [lm.get(engine.structure.hooks[hook].location.removesuffix(".output")) for hook in hooks]
    rows = 0
    for start in range(0, len(requests), BATCH):
        batch = requests[start : start + BATCH]
        ids, mask = left_padded(engine.model, batch)
        lengths = [request.max_tokens or 0 for request in batch]
        kept: list[list[torch.Tensor]] = [[] for _ in points]
        options = {
            "max_new_tokens": max(lengths),
            "do_sample": False,
            "eos_token_id": None,
            "pad_token_id": 0,
            "stopping_criteria": StoppingCriteriaList([AtLength(ids.shape[1], lengths)]),
        }
        warnings.filterwarnings("ignore", message=".*was never reached.*")  # the loop's end, by design
        with torch.inference_mode():  # noqa: SIM117
            with lm.generate(**options) as tracer:
                with tracer.invoke(input_ids=ids, attention_mask=mask):
                    _save_steps(tracer, points, kept)
        rows += cut([torch.cat(steps, dim=1) for steps in kept], batch, ids.shape[1])
    return rows


def _save_steps(tracer: Any, points: Sequence[Any], kept: Sequence[list[torch.Tensor]]) -> None:
    for _ in tracer.iter[:]:
        for point, into in zip(points, kept, strict=True):
            into.append(point.output.detach().clone())


def read_again(engine: Engine, requests: Sequence[GenerationRequest], hooks: Sequence[str]) -> int:
    """Generation without capture, then one forward pass over the texts with hooks; returns the rows."""
    generated(engine, requests, ())
    hf: Any = engine.model.hf
    rows = 0
    for start in range(0, len(requests), BATCH):
        batch = requests[start : start + BATCH]
        # the last token is never run; which ids the texts have does not change the work
        texts = [replace(r, prompt_ids=(*r.prompt_ids, *[0] * ((r.max_tokens or 0) - 1))) for r in batch]
        ids, mask = left_padded(engine.model, texts)
        kept: list[torch.Tensor] = []
        paths = [engine.structure.hooks[hook].location.removesuffix(".output") for hook in hooks]

        def keep(_: Any, args: Any, output: torch.Tensor, into: list[torch.Tensor] = kept) -> None:
            into.append(output)

        handles = [hf.get_submodule(path).register_forward_hook(keep) for path in paths]
        with torch.inference_mode():
            hf(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=1)
        for handle in handles:
            handle.remove()
        for whole in kept:
            for row, text in enumerate(texts):
                rows += whole[row, ids.shape[1] - len(text.prompt_ids) :].contiguous().shape[0]
    return rows


def cut(kept: Sequence[torch.Tensor], batch: Sequence[GenerationRequest], prompt: int) -> int:
    """Cut the rows of each sample out of a batch's; returns their number."""
    rows = 0
    for whole in kept:
        for row, request in enumerate(batch):
            first = prompt - len(request.prompt_ids)
            rows += whole[row, first : prompt + (request.max_tokens or 0) - 1].contiguous().shape[0]
    return rows


def streamed(
    engine: StreamingEngine, requests: Sequence[GenerationRequest], hooks: Sequence[str], slots: int
) -> int:
    """The streaming engine; returns the captured rows."""
    counter = Counter(requests)
    capture = CapturePlan(hooks=tuple(hooks)) if hooks else None
    plan = RunPlan(sampling=SamplingSpec(), capture=capture)
    engine.run(plan, source=counter, results=counter, control=counter, sink=counter, most=slots)
    assert counter.ended == len(requests)
    return counter.rows


def timed(run: Callable[[], int]) -> Measured:
    wall, cpu = time.perf_counter(), time.process_time()
    rows = run()
    return Measured(time.perf_counter() - wall, time.process_time() - cpu, rows)


def summary(name: str, rounds: Sequence[Measured], base: Sequence[Measured], tokens: int) -> dict[str, Any]:
    """Rates of one way, and its CPU and wall time against those of the base in the same round."""
    wall, cpu = (statistics.median(getattr(r, clock) for r in rounds) for clock in ("wall", "cpu"))
    entry: dict[str, Any] = {
        "way": name,
        "wall_seconds": round(wall, 2),
        "cpu_seconds": round(cpu, 2),
        "tokens_per_second": round(tokens / wall, 1),
        "tokens_per_cpu_second": round(tokens / cpu, 1),
        "rows_per_second": round(rounds[0].rows / wall),
        "rows_per_cpu_second": round(rounds[0].rows / cpu),
    }
    for clock in ("cpu", "wall"):
        ratios = [getattr(b, clock) / getattr(r, clock) for b, r in zip(base, rounds, strict=True)]
        middle, quartiles = median_and_quartiles(sorted(ratios))
        entry[f"speed_{clock}"] = {"median": round(middle, 3), "quartiles": [round(q, 3) for q in quartiles]}
    return entry


def show(entries: Sequence[Mapping[str, Any]]) -> None:
    columns = {
        "wall_seconds": "wall s",
        "cpu_seconds": "CPU s",
        "tokens_per_second": "tok/s",
        "tokens_per_cpu_second": "tok/CPU s",
        "rows_per_second": "rows/s",
        "rows_per_cpu_second": "rows/CPU s",
    }
    titles = "".join(f"{title:>11}" for title in columns.values())
    print(f"{'':34}{titles}  speed by CPU time, by wall time")
    for e in entries:
        speeds = "  ".join(
            f"{e[k]['median']:.2f} [{e[k]['quartiles'][0]:.2f}, {e[k]['quartiles'][1]:.2f}]"
            for k in ("speed_cpu", "speed_wall")
        )
        print(f"{e['way']:34}" + "".join(f"{e[column]:>11}" for column in columns) + f"  {speeds}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--scale", type=float, default=0.3, help="of the answers' lengths")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the result here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logs: Any = transformers.logging
    logs.set_verbosity_error()
    engine = build(MID_54M, torch.float32, "cpu")
    streaming, reason = verify(engine.hooks)
    if streaming is None:
        raise SystemExit(f"streaming was refused: {reason}")
    unpacked = probe(engine.model.hf)
    if unpacked is not None:
        raise SystemExit(f"weights cannot be packed: {unpacked}")
    requests = requests_of(args.samples, args.scale, MID_54M["vocab_size"])
    tokens = sum(request.max_tokens or 0 for request in requests)
    layers = MID_54M["num_hidden_layers"]
    points = [f"{point}.{layer}" for layer in range(layers) for point in ("attn_in", "mlp_in")]
    lm = wrapped(engine)
    three = [hook for hook in points if int(hook.rpartition(".")[2]) in (3, 6, 9)]
    ways: dict[str, Callable[[], int]] = {
        "generate, all layers x 2": lambda: generated(engine, requests, points),
        "generate, no capture": lambda: generated(engine, requests, ()),
        "nnsight, all layers x 2": lambda: scripted(engine, lm, requests, points),
        "two-pass, all layers x 2": lambda: read_again(engine, requests, points),
        "streaming, all layers x 2": lambda: streamed(streaming, requests, points, args.slots),
        "streaming, no capture": lambda: streamed(streaming, requests, (), args.slots),
        "packed streaming, all layers x 2": lambda: streamed(streaming, requests, points, args.slots),
        "packed streaming, 3 layers x 2": lambda: streamed(streaming, requests, three, args.slots),
        "packed streaming, no capture": lambda: streamed(streaming, requests, (), args.slots),
    }
    rounds: dict[str, list[Measured]] = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, way in ways.items():
            # weights are packed once, when a model is loaded
            with pack(engine.model.hf) if name.startswith("packed") else nullcontext():
                rounds[name].append(timed(way))
            print(f"  {name}: {rounds[name][-1].wall:.1f} s, CPU {rounds[name][-1].cpu:.1f} s", flush=True)
    base = rounds["generate, all layers x 2"]
    entries = [summary(name, rounds[name], base, tokens) for name in ways]
    print(
        f"\n{args.samples} samples, {tokens} generated tokens, {args.rounds} rounds, {args.threads} threads"
    )
    show(entries)
    settings = {k: getattr(args, k) for k in ("samples", "scale", "rounds", "slots", "threads")}
    write_result(args.json, {**settings, "generated_tokens": tokens, "ways": entries}, [])


if __name__ == "__main__":
    main()
