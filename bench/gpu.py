"""Streaming on a card: tokens and rows a second by rows at once and by capture, in one table.

    actograph bench gpu [--shape qwen3-0.6b] [--slots 1,8,32,128] [--json FILE]

Random weights in the shape of a known model, bfloat16 on a GPU and float32 on a CPU. Beside it
`transformers.generate` in batches of 16 with the same prompts and lengths. No card has run it yet.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# as workers do: segments that grow leave fewer holes when lengths differ
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

import torch
import transformers

from bench.capture_throughput import build, variants
from bench.shapes import LLAMA_8B, PYTHON_BOUND, QWEN3_06B, QWEN3_50M
from bench.streaming_drain import generated, requests_of, streamed, timed
from tests.support.marks import write_result
from worker.engine.engine import Engine

SHAPES = {"tiny": PYTHON_BOUND, "50m": QWEN3_50M, "qwen3-0.6b": QWEN3_06B, "llama-8b": LLAMA_8B}


def finished(run: Callable[[], int], device: str) -> Callable[[], int]:
    """`run`, until the device has done its work."""

    def whole() -> int:
        rows = run()
        if device != "cpu":
            torch.cuda.synchronize()
        return rows

    return whole


def table(engine: Engine, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One entry for each way."""
    streaming = engine.streaming()
    if streaming is None:
        raise SystemExit(f"streaming was refused: {engine.streaming_refusal}")
    entries = []
    hooks_of = variants(engine)
    ways: list[tuple[int, str]] = [(0, name) for name in hooks_of if name != "3 layers x 2 points"]
    ways += [(slots, name) for slots in arguments.slots for name in hooks_of]
    for slots, name in ways:
        samples = max(2, min(arguments.samples, 4 * (slots or 16)))
        requests = requests_of(samples, arguments.scale, engine.structure.vocab_size)
        hooks = hooks_of[name]

        def run(slots: int = slots, requests: Any = requests, hooks: Sequence[str] = hooks) -> int:
            return (
                streamed(streaming, requests, hooks, slots) if slots else generated(engine, requests, hooks)
            )

        whole = finished(run, arguments.device)
        whole()  # warms up kernels and the allocator
        if arguments.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        measured = timed(whole)
        tokens = sum(request.max_tokens or 0 for request in requests)
        entry: dict[str, Any] = {
            "way": f"streaming, {slots} rows" if slots else "generate, 16 rows",
            "capture": name,
            "tokens_per_second": round(tokens / measured.wall, 1),
            "rows_per_second": round(measured.rows / measured.wall),
            "peak_bytes": torch.cuda.max_memory_allocated() if arguments.device != "cpu" else None,
        }
        entries.append(entry)
        show(entry)
    return entries


def show(entry: dict[str, Any]) -> None:
    peak = "" if entry["peak_bytes"] is None else f"{entry['peak_bytes'] / 2**30:8.1f} GiB"
    print(
        f"{entry['way']:22}{entry['capture']:26}{entry['tokens_per_second']:>10} tok/s"
        f"{entry['rows_per_second']:>12,} rows/s{peak}",
        flush=True,
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="actograph bench gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--slots", type=_numbers, default=[1, 8, 32, 128], metavar="N,N", help="rows at once")
    parser.add_argument("--samples", type=int, default=512, help="most samples of a run")
    parser.add_argument("--scale", type=float, default=1.0, help="of the answers' lengths")
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args(words)
    logs: Any = transformers.logging
    logs.set_verbosity_error()
    dtype = torch.float32 if arguments.device == "cpu" else torch.bfloat16
    entries = table(build(SHAPES[arguments.shape], dtype, arguments.device), arguments)
    name = "CPU" if arguments.device == "cpu" else torch.cuda.get_device_name()
    write_result(arguments.json, {"shape": arguments.shape, "card": name, "ways": entries})


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
