"""Peak memory of 20 mixed jobs in one run against the plan that the run is made by.

    python -m bench.planned_memory [--free 768] [--device cuda] [--json FILE]

The model's device has `--free` MiB as far as the engine knows, of which its plan is a share. Jobs differ in
length of prompt and answer, in what they capture and in what they change; all are in one run, and fill it.
The process is fresh, tuned as a worker is, and its memory before the run is taken off. Logits and
activations of a pass come on top of the plan, and count.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

from actograph.contract import hooks as grammar
from actograph.contract.specs import SamplingSpec
from bench import process_memory
from bench.capture_throughput import build
from bench.marks import Mark, print_marks, write_result
from bench.shapes import PYTHON_BOUND
from evals import plans
from tests.support.local_engine import ListedRun
from worker.__main__ import tune_for_cpu
from worker.engine import forwards
from worker.engine.engine import Engine
from worker.engine.messages import Capture, Edit, Request, Rows, RunOptions, StatisticsOptions
from worker.engine.model.kv_cache import kv_bytes_per_token

MARK = 1.1
MIB = 1 << 20
SHAPE = PYTHON_BOUND | {"num_hidden_layers": 16, "hidden_size": 512, "intermediate_size": 512}
JOBS, REQUESTS, SLOTS = 20, 12, 48


class Queue(ListedRun):
    """Counts the bytes of rows and drops them."""

    row_bytes = 0

    def write(self, key: str, rows: Mapping[str, Rows]) -> None:
        self.row_bytes += sum(piece.nbytes for chunk in rows.values() for piece in chunk.pieces)


def captures(engine: Engine) -> list[Capture | None]:
    """Captures of the jobs, in turn."""
    points = ["attn_in", "mlp_in"]
    every = tuple(grammar.expand(points, "all", [], engine.structure))
    three = tuple(grammar.expand(points, None, [], engine.structure))
    return [
        None,
        Capture(hooks=every),
        Capture(hooks=three),
        Capture(hooks=every, positions="generated"),
        Capture(hooks=every, dtype="bfloat16"),
        Capture(hooks=every, reduce="mean"),
        Capture(hooks=three, statistics=StatisticsOptions(threshold=1.0)),
        Capture(hooks=("logits",), positions="last"),
        Capture(hooks=three, columns=16),
        Capture(hooks=("embed", *three, "final_norm")),
    ]


def jobs(engine: Engine) -> Iterator[list[Request]]:
    draw, plan = random.Random(5), captures(engine)
    edit = Edit(hook="resid_post.3", op="scale", coefficient=0.5)
    for number in range(JOBS):
        most, prompt = draw.choice((0, 8, 64, 256, 700)), draw.choice((8, 80, 600))
        yield [
            Request(
                key=f"{number}-{i}",
                prompt_ids=tuple(draw.randrange(512) for _ in range(draw.randint(prompt // 2, prompt))),
                seed=i,
                max_tokens=most and draw.randint(1, most),
                edits=(edit,) if number % 4 == 3 else (),
                sampling=SamplingSpec(max_tokens=max(1, most)),
                capture=plan[number % len(plan)],
            )
            for i in range(REQUESTS)
        ]


def measure(free: int, device: str) -> dict[str, Any]:
    """The run in this process; bytes."""
    torch.set_num_threads(2)
    logs: Any = transformers.logging
    logs.set_verbosity_error()
    engine = build(SHAPE, torch.float32, device)
    forwards.available_bytes = lambda _: free  # type: ignore[attr-defined, assignment]
    options = RunOptions(slots=SLOTS)
    token_bytes = kv_bytes_per_token(engine.model)
    on_gpu = device == "cuda"
    room = plans.run_memory(
        plans.run_bytes(free, engine.forwards.pass_bytes),
        token_bytes=token_bytes,
        slots=SLOTS,
        context=engine.model.context_length,
        row_bytes=options.row_bytes,
        on_gpu=on_gpu,
    )
    asked = [request for job in jobs(engine) for request in job]
    random.Random(6).shuffle(asked)
    _run(engine, asked[:4], options)
    process_memory.trim()
    before = process_memory.in_use(on_gpu=on_gpu)
    process_memory.reset_peak(on_gpu=on_gpu)
    queue, made = _run(engine, asked, options)
    failed = [made.error for made in queue.made.values() if made.error is not None]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
    planned = room.total + (engine.forwards.pass_bytes or 0) if on_gpu else room.for_keys + room.for_rows
    return {
        "free": free,
        "planned": planned,
        "peak": process_memory.peak(on_gpu=on_gpu) - before,
        "rows": queue.row_bytes,
        "tokens": made.computed,
        "pauses_for_the_sink": made.waits,
    }


def _run(engine: Engine, asked: Sequence[Request], options: RunOptions) -> tuple[Queue, Any]:
    queue = Queue(asked)
    return queue, engine.run(source=queue, control=queue, results=queue, sink=queue, options=options)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--free", type=int, default=768, help="MiB of the device, as the engine sees it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.free * MIB, args.device)))
        return
    command = [sys.executable, "-m", "bench.planned_memory", "--one", "--free", str(args.free)]
    command += ["--device", args.device]
    environment = dict(os.environ)
    tune_for_cpu(environment)
    found: list[dict[str, Any]] = []
    for _ in range(args.rounds):
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        shown = {name: f"{found[-1][name] / MIB:,.0f} MiB" for name in ("planned", "peak", "rows")}
        print(shown, f"{found[-1]['tokens']:,} tokens")
    worst = max(one["peak"] / one["planned"] for one in found)
    name = f"peak memory of {JOBS} mixed jobs / plan, worst of {args.rounds}"
    mark = Mark(name=name, measured=worst, at_most=MARK)
    print_marks([mark])
    write_result(args.json, {"device": args.device, "shape": SHAPE, "rounds": found}, [mark])


if __name__ == "__main__":
    main()
