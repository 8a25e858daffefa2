"""Samples per hour of a capturing evaluation over those of lm-eval's hf backend, which captures nothing.

    python -m bench.lm_eval_speed --model DIR --gsm8k FOLDER [--shape 50m] [--task gsm8k_cot] [--json FILE]

Both sides run the first `--limit` problems of FOLDER/test.jsonl greedily with the same model, prompts,
`--max-tokens`, dtype, device and threads, and both stay loaded; in each round one follows the other, and
who begins changes. The `--num-fewshot` examples are the task's own, or drawn from FOLDER/train.jsonl. Here a
job goes through the whole service, from submission to the last durable session, with attn_in and mlp_in of
`--layers` kept for every token. lm-eval runs its own `evaluate` with batches of
16 in a process of its own, from the building of prompts to the scores. `--shape` takes random weights of
that shape with DIR's tokenizer; one token in `--end-share` ends an answer, so that lengths are spread. The
CPU time of the service is that of all its processes.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import psutil
import torch

from actograph.client import Client
from actograph.contract.resources import JobStatus, Sample
from actograph.contract.tasks import OWN_EXAMPLES
from actograph.stack.up import up_process
from bench.drain import LOOK_SECONDS, random_weights
from bench.marks import Mark, median_and_quartiles, print_marks, write_result
from bench.shapes import QWEN3_06B, QWEN3_50M
from tests.support.lmeval.environment import LmEval

SHAPES = {"50m": QWEN3_50M, "qwen3-0.6b": QWEN3_06B}
BATCH = 16
#: least ratio by examples (none, the task's own, drawn) and dtype
MARKS = {
    "none": {"float32": 3.0, "bfloat16": 2.0},
    "own": {"float32": 5.0, "bfloat16": 4.0},
    "drawn": {"float32": 2.5, "bfloat16": 1.8},
}


def ours(client: Client, arguments: argparse.Namespace, other: int) -> tuple[dict[str, Any], list[Sample]]:
    """One job; `other` is the process that belongs to lm-eval."""
    before = _service_cpu(other)
    started = time.perf_counter()
    job = client.submit(
        {
            "kind": "evaluation",
            "model": "bench",
            "task": arguments.task,
            "dataset": {"path": str(arguments.gsm8k / "test.jsonl")},
            "num_fewshot": arguments.num_fewshot,
            **(
                {"fewshot_dataset": {"path": str(arguments.gsm8k / "train.jsonl")}}
                if drawn(arguments)
                else {}
            ),
            "limit": arguments.limit,
            "scorers": ["strict-match", "flexible-extract"],
            "sampling": {"max_tokens": arguments.max_tokens},
            "capture": {"points": ["attn_in", "mlp_in"], "layers": arguments.layers},
        }
    )
    while not (job := client.jobs.get(job.id)).status.is_terminal():
        time.sleep(LOOK_SECONDS)
    seconds = time.perf_counter() - started
    spent = {"seconds": seconds, "cpu_seconds": _service_cpu(other) - before}
    if job.status is not JobStatus.COMPLETED or job.progress.completed != arguments.limit:
        raise SystemExit(f"the job ended as {job.status}: {job.progress}, {job.error}")
    samples = list(client.jobs.get(job.id).samples())
    if not all(sample.session_id for sample in samples):
        raise SystemExit("a sample has no session")
    client.jobs.delete(job.id)
    return spent, samples


def drawn(arguments: argparse.Namespace) -> bool:
    """Whether the examples are rows of a dataset."""
    return bool(arguments.num_fewshot) and arguments.task not in OWN_EXAMPLES


def _service_cpu(other: int) -> float:
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        if process.pid == other:
            continue
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def rounds(
    client: Client, lm_eval: LmEval, model: Path, arguments: argparse.Namespace
) -> tuple[list[dict[str, Any]], int]:
    """Figures of every round after the first, which warms both up, and how many answers agreed."""
    request = {
        "op": "evaluate", "model": str(model), "task": arguments.task, "num_fewshot": arguments.num_fewshot,
        "limit": arguments.limit,
        "max_tokens": arguments.max_tokens, "chat": True, "batch_size": BATCH, "dtype": arguments.dtype,
        "device": arguments.device, "threads": arguments.threads,
    }  # fmt: skip
    found: list[dict[str, Any]] = []
    same = 0
    for turn in range(arguments.rounds + 1):
        if turn % 2:
            (theirs,) = lm_eval.ask(request)
            mine, samples = ours(client, arguments, lm_eval.pid)
        else:
            mine, samples = ours(client, arguments, lm_eval.pid)
            (theirs,) = lm_eval.ask(request)
        answers = theirs.pop("samples")
        pairs = list(zip(samples, answers, strict=True))
        if any(sample.prompt != answer["prompt"] for sample, answer in pairs):
            raise SystemExit("the two sides were asked different things")
        same = sum(sample.completion == answer["completion"] for sample, answer in pairs)
        if turn:
            found.append({"actograph": mine, "lm_eval": theirs})
            print(
                f"round {turn}: {mine['seconds']:.2f} s and {theirs['seconds']:.2f} s of lm-eval, "
                f"CPU {mine['cpu_seconds']:.2f} s and {theirs['cpu_seconds']:.2f} s",
                flush=True,
            )
    return found, same


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="model folder with a chat template")
    parser.add_argument("--gsm8k", type=Path, required=True, help="folder of train.jsonl and test.jsonl")
    parser.add_argument("--shape", choices=list(SHAPES), help="random weights of this shape")
    parser.add_argument("--end-share", type=int, default=80, help="0: all answers reach --max-tokens")
    parser.add_argument("--task", default="gsm8k", choices=["gsm8k", "gsm8k_cot"])
    parser.add_argument("--num-fewshot", type=int, help="examples; default: the task's own, or none")
    parser.add_argument("--limit", type=int, default=64, help="problems")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--layers", default=None, help="all, or a slice; default: three of them")
    parser.add_argument("--rounds", type=int, default=5, help="that count, at least two")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--slots", type=int, default=0, help="of this side; 0: the memory plan")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--cuda-graphs", action="store_true", help="replay decode passes")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    arguments.gsm8k = arguments.gsm8k.resolve()
    if arguments.num_fewshot is None:
        arguments.num_fewshot = OWN_EXAMPLES.get(arguments.task, 0)
    with tempfile.TemporaryDirectory(prefix="actograph-bench-") as scratch:
        model: Path = arguments.model.resolve()
        if arguments.shape:
            model = Path(scratch) / "model"
            dtype = getattr(torch, arguments.dtype)
            random_weights(arguments.model, model, dtype, SHAPES[arguments.shape], arguments.end_share)
        options = [
            f"--model=bench={model}", f"--home={Path(scratch) / 'home'}", "--port=0",
            f"--threads={arguments.threads}", f"--data-root={arguments.gsm8k}",
        ]  # fmt: skip
        environment = {
            **os.environ,
            "ACTOGRAPH_SLOTS": str(arguments.slots),
            "ACTOGRAPH_DEVICE": arguments.device,
            "ACTOGRAPH_DTYPE": arguments.dtype,
            "ACTOGRAPH_CUDA_GRAPHS": str(arguments.cuda_graphs),
        }
        with (
            LmEval(arguments.gsm8k, Path(scratch), threads=arguments.threads) as lm_eval,
            up_process(options, environment) as url,
            Client(url) as client,
        ):
            found, same = rounds(client, lm_eval, model, arguments)
    result = report(found, same, arguments)
    low, middle, high = (result["ratio_wall"][key] for key in ("low", "median", "high"))
    examples = "drawn" if drawn(arguments) else "own" if arguments.num_fewshot else "none"
    mark = Mark(
        name=f"{result['model']}, {arguments.task}, {arguments.num_fewshot} examples, {arguments.dtype}: "
        f"samples/hour with capture / lm-eval's hf backend, batch {BATCH}",
        measured=middle,
        at_least=MARKS[examples][arguments.dtype],
        quartiles=(low, high),
    )
    print_marks([mark])
    write_result(arguments.json, result, [mark])


def report(found: list[dict[str, Any]], same: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Ratios above 1 are in this side's favour."""
    result: dict[str, Any] = {
        "model": f"random weights, {arguments.shape}" if arguments.shape else arguments.model.name,
        "task": arguments.task,
        "num_fewshot": arguments.num_fewshot,
        "limit": arguments.limit,
        "max_tokens": arguments.max_tokens,
        "layers": arguments.layers or "three",
        "device": arguments.device,
        "dtype": arguments.dtype,
        "threads": arguments.threads,
        "cuda_graphs": arguments.cuda_graphs,
        "batch_size": {"actograph": arguments.slots or "default", "lm_eval": BATCH},
        "same_completions": same,
        "rounds": found,
    }
    print(f"{same} of {arguments.limit} completions are the same")
    for name, clock in (("ratio_wall", "seconds"), ("ratio_cpu", "cpu_seconds")):
        middle, (low, high) = median_and_quartiles(
            [one["lm_eval"][clock] / one["actograph"][clock] for one in found]
        )
        result[name] = {"median": middle, "low": low, "high": high}
        print(f"{name}: {middle:.2f} [{low:.2f}, {high:.2f}]")
    for side in ("actograph", "lm_eval"):
        middle, _ = median_and_quartiles([3600 * arguments.limit / one[side]["seconds"] for one in found])
        result[f"samples_per_hour_{side}"] = middle
        print(f"{side}: {middle:,.0f} samples/hour")
    return result


if __name__ == "__main__":
    main()
