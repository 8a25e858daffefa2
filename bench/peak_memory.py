"""Peak memory of capturing many tokens against few, beyond the weights and the key-value cache.

    python -m bench.peak_memory [--rounds 5] [--tokens 256 2048] [--mmap-threshold 65536] [--device cuda]

Every measurement is a process of its own: it builds a small model (random weights), generates a
little to warm up, notes what is in use, generates, and takes the peak: of the resident size on a
CPU, of what torch's allocator handed out on a GPU. The cache is taken off in two ways: as counted
from the config, and as measured by a run without capture, which also has the copies that the
cache's growth makes. The mark is for what capturing adds to the run without it.

The engine holds rows up to its budgets (`host_buffer_bytes`, and `shard_bytes` per sample) before
it hands them on. Below those, memory grows with the rows that there are; above, it must not. So
the budgets are set here to what the shorter run fills several times.

glibc lets the size from which it maps an allocation by itself grow with what was freed, and a heap
with large holes in it grows too. `--mmap-threshold` fixes that size (mallopt(3)), so that what is
measured is what the engine holds; 0 leaves malloc as it is, and shows the heap as well.
"""

import argparse
import ctypes
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

from actograph.contract import hooks as grammar
from actograph.contract.specs import SamplingSpec
from bench.capture_throughput import CountingSink, build
from bench.shapes import PYTHON_BOUND
from worker.engine import memory
from worker.engine.kv_cache import kv_bytes_per_token
from worker.engine.requests import BufferOptions, GenerationRequest

MARK = 1.05
MIB = 1 << 20
PLAIN, CAPTURED = "no capture", "all layers x 2 points"
PROMPT = 32
#: wide enough that 256 tokens of 16 layers x 2 points (16 MiB) fill every buffer
SHAPE = PYTHON_BOUND | {"num_hidden_layers": 16, "hidden_size": 512, "intermediate_size": 512}
BUDGET = 2 << 20  # bytes; a row of all hooks takes 64 KiB


def measure(tokens: int, *, capture: bool, budget: int, device: str) -> dict[str, int]:
    """One generation in this process: its peak beyond what was in use before, and beyond the cache."""
    torch.set_num_threads(1)
    logs: Any = transformers.logging
    logs.set_verbosity_error()
    engine = build(SHAPE, torch.float32, device)
    hooks = grammar.expand(["attn_in", "mlp_in"], "all", [], engine.structure) if capture else []
    options = BufferOptions(host_buffer_bytes=budget, shard_bytes=budget, device_buffer_bytes=budget // 4)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(engine.structure.vocab_size, (PROMPT,), generator=generator)
    request = GenerationRequest(key="0", prompt_ids=tuple(ids.tolist()), seed=0)

    def run(count: int) -> CountingSink:
        sink = CountingSink()
        made = engine.generate(
            [request],
            sampling=SamplingSpec(max_tokens=count),
            hooks=hooks,
            sink=sink if hooks else None,
            options=options,
        )
        if made[0].error or len(made[0].generated_ids) != count:
            raise RuntimeError(f"a generation of {count} tokens failed: {made[0].error}")
        if sink.rows != len(hooks) * (PROMPT + count - 1):
            raise RuntimeError(f"{sink.rows} rows were captured")
        return sink

    run(16)
    _trim()
    on_gpu = device == "cuda"
    before = _in_use(on_gpu)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    else:
        _reset_peak_rss()
    sink = run(tokens)
    peak = torch.cuda.max_memory_allocated() if on_gpu else _peak_rss()
    per_token = kv_bytes_per_token(engine.model)
    layers = engine.structure.num_layers
    cache = (PROMPT + tokens) * (per_token + per_token // (2 * layers))
    return {"peak": peak - before, "cache": cache, "beyond": peak - before - cache, "rows": sink.bytes}


def _trim() -> None:
    """Give what building the model left in the heap back to the kernel, or it would hide growth."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _in_use(on_gpu: bool) -> int:
    snapshot = memory.memory_snapshot(torch.device("cuda") if on_gpu else None)
    return snapshot["cuda_allocated_bytes" if on_gpu else "rss_bytes"]


def _reset_peak_rss() -> None:
    """Let the kernel's high-water mark begin anew (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak_rss() -> int:
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, _in_use(on_gpu=False))


def in_process(
    tokens: int, *, capture: bool, budget: int, device: str, mmap_threshold: int
) -> dict[str, int]:
    """`measure` in a fresh process."""
    environment = dict(os.environ)
    if mmap_threshold:
        environment |= {"MALLOC_MMAP_THRESHOLD_": str(mmap_threshold), "MALLOC_TRIM_THRESHOLD_": "131072"}
    arguments = ["--one", str(tokens), "--budget", str(budget), "--device", device]
    command = [sys.executable, "-m", "bench.peak_memory", *arguments, *([] if capture else ["--plain"])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs=2, default=[256, 2048], metavar=("FEW", "MANY"))
    parser.add_argument("--budget", type=int, default=BUDGET, help="host_buffer_bytes and shard_bytes")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--mmap-threshold", type=int, default=65536, help="bytes; 0 leaves malloc alone")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        found = measure(args.one, capture=not args.plain, budget=args.budget, device=args.device)
        print(json.dumps(found))
        return
    result = compare(args)
    report(result, *args.tokens)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Every measurement `args.rounds` times, in turn; bytes."""
    runs: dict[str, dict[int, list[dict[str, int]]]] = {
        name: {tokens: [] for tokens in args.tokens} for name in (PLAIN, CAPTURED)
    }
    for _ in range(args.rounds):
        for name, by_tokens in runs.items():
            for tokens, found in by_tokens.items():
                found.append(
                    in_process(
                        tokens,
                        capture=name == CAPTURED,
                        budget=args.budget,
                        device=args.device,
                        mmap_threshold=args.mmap_threshold,
                    )
                )
    variants: dict[str, dict[str, list[int]]] = {
        name: {str(tokens): sorted(f["beyond"] for f in found) for tokens, found in by_tokens.items()}
        for name, by_tokens in runs.items()
    }
    few, many = args.tokens
    middle = {
        (name, tokens): statistics.median(f["peak"] for f in found)
        for name, by_tokens in runs.items()
        for tokens, found in by_tokens.items()
    }
    added = {tokens: middle[CAPTURED, tokens] - middle[PLAIN, tokens] for tokens in args.tokens}
    return {
        "device": args.device,
        "shape": SHAPE,
        "prompt_tokens": PROMPT,
        "budget_bytes": args.budget,
        "mmap_threshold": args.mmap_threshold,
        "rounds": args.rounds,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "rows_bytes": {str(tokens): runs[CAPTURED][tokens][0]["rows"] for tokens in args.tokens},
        "beyond_counted_cache": variants,
        "added_by_capture": {str(tokens): size for tokens, size in added.items()},
        "ratio": round(added[many] / added[few], 3),
        "mark": MARK,
    }


def report(result: dict[str, Any], few: int, many: int) -> None:
    print(f"peak memory, MiB, {result['device']}, medians of {result['rounds']} [lowest, highest]")
    print(f"{'':44}{f'{few} tokens':>22}{f'{many} tokens':>22}{'ratio':>8}")
    for name, by_tokens in result["beyond_counted_cache"].items():
        middles = [statistics.median(by_tokens[str(tokens)]) for tokens in (few, many)]
        cells = [
            f"{m / MIB:.2f} [{by_tokens[str(t)][0] / MIB:.2f}, {by_tokens[str(t)][-1] / MIB:.2f}]"
            for m, t in zip(middles, (few, many), strict=True)
        ]
        label = f"{name}, beyond the counted cache"
        print(f"{label:44}{cells[0]:>22}{cells[1]:>22}{middles[1] / middles[0]:>8.3f}")
    for label, sizes in (("added by capture", "added_by_capture"), ("rows captured", "rows_bytes")):
        less, more = result[sizes][str(few)], result[sizes][str(many)]
        print(f"{label:44}{less / MIB:>22.2f}{more / MIB:>22.2f}{more / less:>8.3f}")
    kept = "kept" if result["ratio"] <= MARK else "MISSED"
    print(f"mark: what capture adds grows by at most {MARK}: {result['ratio']}, {kept}")


if __name__ == "__main__":
    main()
