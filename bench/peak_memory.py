"""Peak memory of capturing many tokens against few, beyond the weights and the key-value cache.

    python -m bench.peak_memory [--rounds 5] [--tokens 256 2048] [--cases small default] [--device cuda]

Every measurement is a process of its own: it builds a small model (random weights), generates a
little to warm up, notes what is in use, generates, and takes the peak: of the resident size on a
CPU, of what torch's allocator handed out on a GPU. The cache is taken off in two ways: as counted
from the config, and as measured by a run without capture, which also has the copies that the
cache's growth makes. The mark is for what capturing adds to the run without it, all layers x 2 points.

The engine holds rows up to its budgets (`row_bytes`, and `shard_bytes` per sample) before it hands
them on. Below those, memory grows with the rows that there are; above, it must not. So each case has
a shape whose shorter run fills its budgets: "small" has budgets of 16 MiB, "default" the worker's own
(2 GiB) and rows of 12 MiB per token of its batch of 16.

The allocator is as the worker leaves it: glibc's, with its own settings.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

from actograph.contract import hooks as grammar
from actograph.contract.specs import SamplingSpec
from actograph.settings import Settings
from bench import process_memory
from bench.capture_throughput import CountingSink, build
from bench.marks import Mark, print_marks, write_result
from bench.shapes import PYTHON_BOUND
from tests.support.engine_run import generate
from worker.engine.messages import Request, RunOptions
from worker.engine.model.kv_cache import kv_bytes_per_token

MARK = 1.05
MIB = 1 << 20
PLAIN, CAPTURED = "no capture", "all layers x 2 points"
PROMPT = 32


@dataclass(frozen=True, kw_only=True)
class Case:
    """A shape and budgets such that the shorter run fills them."""

    shape: dict[str, int]
    batch: int
    options: RunOptions


def _cases() -> dict[str, Case]:
    small = 16 << 20  # a row of all hooks takes 64 KiB
    own = Settings.model_fields
    return {
        "small": Case(
            shape=PYTHON_BOUND | {"num_hidden_layers": 16, "hidden_size": 512, "intermediate_size": 512},
            batch=1,
            options=RunOptions(slots=1, row_bytes=small, shard_bytes=small // 2),
        ),
        "default": Case(
            shape=PYTHON_BOUND | {"num_hidden_layers": 4, "hidden_size": 24_576},
            batch=16,
            options=RunOptions(
                slots=16,
                row_bytes=own["host_buffer_bytes"].default,
                shard_bytes=own["shard_bytes"].default,
            ),
        ),
    }


CASES = _cases()


def measure(case: Case, tokens: int, *, capture: bool, device: str) -> dict[str, int]:
    """One generation in this process: its peak beyond what was in use before, and beyond the cache."""
    torch.set_num_threads(1)
    logs: Any = transformers.logging
    logs.set_verbosity_error()
    engine = build(case.shape, torch.float32, device)
    hooks = grammar.expand(["attn_in", "mlp_in"], "all", [], engine.structure) if capture else []
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(engine.structure.vocab_size, (PROMPT,), generator=generator)
    requests = [Request(key=str(i), prompt_ids=tuple(ids.tolist()), seed=i) for i in range(case.batch)]

    def run(count: int) -> CountingSink:
        sink = CountingSink()
        made = generate(
            engine,
            requests,
            sampling=SamplingSpec(max_tokens=count),
            hooks=hooks,
            sink=sink if hooks else None,
            options=case.options,
        )
        if any(g.error or len(g.generated_ids) != count for g in made):
            raise RuntimeError(f"a generation of {count} tokens failed: {made[0].error}")
        if sink.rows != len(hooks) * case.batch * (PROMPT + count - 1):
            raise RuntimeError(f"{sink.rows} rows were captured")
        return sink

    run(16)
    process_memory.trim()
    on_gpu = device == "cuda"
    before = process_memory.in_use(on_gpu=on_gpu)
    process_memory.reset_peak(on_gpu=on_gpu)
    sink = run(tokens)
    peak = process_memory.peak(on_gpu=on_gpu)
    per_token = kv_bytes_per_token(engine.model)
    layers = engine.structure.num_layers
    cache = case.batch * (PROMPT + tokens) * (per_token + per_token // (2 * layers))
    return {"peak": peak - before, "cache": cache, "beyond": peak - before - cache, "rows": sink.bytes}


def in_process(case: str, tokens: int, *, capture: bool, device: str) -> dict[str, int]:
    """`measure` in a fresh process."""
    command = [sys.executable, "-m", "bench.peak_memory", "--one", str(tokens), "--cases", case]
    command += ["--device", device, *([] if capture else ["--plain"])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Every measurement of a case `args.rounds` times, in turn; bytes."""
    runs: dict[str, dict[int, list[dict[str, int]]]] = {
        variant: {tokens: [] for tokens in args.tokens} for variant in (PLAIN, CAPTURED)
    }
    for _ in range(args.rounds):
        for variant, by_tokens in runs.items():
            for tokens, found in by_tokens.items():
                found.append(in_process(name, tokens, capture=variant == CAPTURED, device=args.device))
    beyond = {
        variant: {str(tokens): sorted(f["beyond"] for f in found) for tokens, found in by_tokens.items()}
        for variant, by_tokens in runs.items()
    }
    few, many = args.tokens
    middle = {
        (variant, tokens): statistics.median(f["peak"] for f in found)
        for variant, by_tokens in runs.items()
        for tokens, found in by_tokens.items()
    }
    added = {tokens: middle[CAPTURED, tokens] - middle[PLAIN, tokens] for tokens in args.tokens}
    case = CASES[name]
    return {
        "case": name,
        "shape": case.shape,
        "batch": case.batch,
        "prompt_tokens": PROMPT,
        "row_bytes": case.options.row_bytes,
        "shard_bytes": case.options.shard_bytes,
        "rows_bytes": {str(tokens): runs[CAPTURED][tokens][0]["rows"] for tokens in args.tokens},
        "beyond_counted_cache": beyond,
        "added_by_capture": {str(tokens): size for tokens, size in added.items()},
        "ratio": round(added[many] / added[few], 3),
    }


def report(result: dict[str, Any], few: int, many: int) -> None:
    budget = result["row_bytes"] / MIB
    print(f"\nbudget {budget:,.0f} MiB, batch {result['batch']}: peaks in MiB, medians [lowest, highest]")
    print(f"{'':44}{f'{few} tokens':>30}{f'{many} tokens':>30}{'ratio':>8}")
    for name, by_tokens in result["beyond_counted_cache"].items():
        middles = [statistics.median(by_tokens[str(tokens)]) for tokens in (few, many)]
        cells = [
            f"{m / MIB:.1f} [{by_tokens[str(t)][0] / MIB:.1f}, {by_tokens[str(t)][-1] / MIB:.1f}]"
            for m, t in zip(middles, (few, many), strict=True)
        ]
        label = f"{name}, beyond the counted cache"
        print(f"{label:44}{cells[0]:>30}{cells[1]:>30}{middles[1] / middles[0]:>8.3f}")
    for label, sizes in (("added by capture", "added_by_capture"), ("rows captured", "rows_bytes")):
        less, more = result[sizes][str(few)], result[sizes][str(many)]
        print(f"{label:44}{less / MIB:>30.1f}{more / MIB:>30.1f}{more / less:>8.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, nargs=2, default=[256, 2048], metavar=("FEW", "MANY"))
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        (name,) = args.cases
        print(json.dumps(measure(CASES[name], args.one, capture=not args.plain, device=args.device)))
        return
    results = [compare(name, args) for name in args.cases]
    marks = []
    few, many = args.tokens
    for result in results:
        report(result, few, many)
        budget = f"budget {result['row_bytes'] >> 20:,} MiB"
        name = f"peak memory that capture adds, {many} / {few} tokens, {budget}"
        marks.append(Mark(name=name, measured=result["ratio"], at_most=MARK))
    print()
    print_marks(marks)
    write_result(args.json, {"device": args.device, "rounds": args.rounds, "cases": results}, marks)


if __name__ == "__main__":
    main()
