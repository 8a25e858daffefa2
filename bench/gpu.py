"""All figures of one GPU, in under twenty minutes.

    python -m bench.gpu --model DIR --gsm8k FOLDER [--quick] [--out FOLDER]

Random weights of Qwen3-0.6B's shape in bfloat16, with DIR's tokenizer: the service against lm-eval's hf
backend on its three prompts, once with CUDA graphs too, capture's cost in the engine, and the peak of its
memory against the plan.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch

from bench.__main__ import show
from bench.programs import Program, run

#: name of the result -> task, examples, further flags
PROMPTS = {
    "zero-shot": ("gsm8k", "0"),
    "zero-shot-cuda-graphs": ("gsm8k", "0", "--cuda-graphs"),
    "gsm8k-cot": ("gsm8k_cot", "8"),
    "gsm8k-5": ("gsm8k", "5"),
}


def programs(model: Path, gsm8k: Path, *, quick: bool) -> dict[str, Program]:
    """The programs by the names of their results."""
    size = (
        ("--limit", "8", "--max-tokens", "16", "--rounds", "2")
        if quick
        else ("--limit", "192", "--rounds", "2")
    )
    given = ("--model", str(model), "--gsm8k", str(gsm8k), "--shape", "qwen3-0.6b", "--layers", "all")
    made = {
        f"gpu-lm-eval-{name}": Program(
            module="lm_eval_speed",
            arguments=(
                *given,
                "--dtype",
                "bfloat16",
                "--task",
                task,
                "--num-fewshot",
                examples,
                *more,
                *size,
            ),
            minutes=3,
            limit_minutes=6,
        )
        for name, (task, examples, *more) in PROMPTS.items()
    }
    seconds = "2" if quick else "20"
    rounds = "2" if quick else "5"
    made["gpu-capture-throughput"] = Program(
        module="capture_throughput",
        arguments=(
            *("--models", "qwen3-0.6b", "--batches", "1", "32", "--device", "cuda", "--dtype", "bfloat16"),
            *("--seconds", seconds, "--rounds", rounds),
        ),
        minutes=3,
        limit_minutes=6,
    )
    made["gpu-peak-memory"] = Program(
        module="peak_memory",
        arguments=("--device", "cuda", "--rounds", "1", *(("--cases", "small") if quick else ())),
        minutes=3,
        limit_minutes=6,
    )
    return made


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="model folder with a chat template")
    parser.add_argument("--gsm8k", type=Path, required=True, help="folder of train.jsonl and test.jsonl")
    parser.add_argument("--quick", action="store_true", help="the smallest settings: does everything work?")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch sees no GPU here: install a build of torch for CUDA")
    print(torch.cuda.get_device_name(0), torch.__version__, flush=True)
    with tempfile.TemporaryDirectory(prefix="actograph-bench-") as scratch:
        out = (options.out or Path(scratch)).absolute()
        out.mkdir(parents=True, exist_ok=True)
        outcomes = [
            run(program, out / f"{name}.json", 1.0)
            for name, program in programs(options.model, options.gsm8k, quick=options.quick).items()
        ]
    show(outcomes, with_marks=not options.quick)
    return int(any(outcome.trouble for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
