"""A whole evaluation through the service, with capture, beside plain transformers without it.

    python -m bench.drain --model DIR --problems FILE.jsonl [--limit N] [--rounds R] [--qwen3-0.6b] [--json F]

`actograph up` serves the model, one GSM8K job captures attn_in and mlp_in in every layer of every
token, and every session is durable before it counts. Then the same prompts go through
transformers' own `generate` in batches of 16, keeping nothing but the tokens, as lm-eval's hf backend
does. Rounds take turns, a new service in each, and medians count. `--qwen3-0.6b` takes random weights in
that model's shape with DIR's tokenizer.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import psutil
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from actograph.client import Client
from actograph.contract.resources import JobStatus
from actograph.stack.up import up_process
from bench.marks import write_result
from bench.shapes import QWEN3_06B

BASELINE_BATCH = 16
#: between looks at the job, each of which takes time from a model on the same cores
LOOK_SECONDS = 0.25


def random_weights(
    tokenizer_folder: Path,
    folder: Path,
    dtype: torch.dtype,
    shape: Mapping[str, int] = QWEN3_06B,
    end_share: int = 0,
) -> None:
    """A model folder in a shape of `bench.shapes`.

    Args:
        end_share: one token in so many ends an answer, so that lengths are spread; 0: none does.

    The weights are larger than usual: answers of small random weights repeat a token or two for ever.
    """
    torch.manual_seed(0)
    ends = list(range(7, shape["vocab_size"], end_share)) if end_share else None
    config = Qwen3Config(
        **shape,  # type: ignore[arg-type]
        max_position_embeddings=4096, bos_token_id=None, eos_token_id=ends, initializer_range=0.05,
    )  # fmt: skip
    model: Any = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = ends
    model.to(dtype).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer_folder).save_pretrained(folder)


def drain(model: Path, arguments: argparse.Namespace, home: Path) -> tuple[dict[str, Any], list[str]]:
    """Run the job through the service; its figures, and the prompts that it used."""
    options = [
        f"--model=bench={model}", f"--home={home}", "--port=0", f"--threads={arguments.threads}",
        f"--data-root={arguments.problems.resolve().parent}",
    ]  # fmt: skip
    with up_process(options, os.environ) as url, Client(url) as client:
        job = client.submit(
            {
                "kind": "evaluation",
                "model": "bench",
                "dataset": {"path": str(arguments.problems.resolve())},
                "limit": arguments.limit,
                "sampling": {"max_tokens": arguments.max_tokens},
                "capture": {"points": ["attn_in", "mlp_in"], "layers": "all"},
            }
        )
        started = time.monotonic()
        while not (job := client.jobs.get(job.id)).status.is_terminal():
            time.sleep(LOOK_SECONDS)
        seconds = time.monotonic() - started
        if job.status is not JobStatus.COMPLETED or job.progress.failed:
            raise SystemExit(f"the job ended as {job.status} with {job.progress.failed} failed samples")
        (worker,) = [w for w in client.workers.list() if w.status in ("ready", "busy") and w.device]
        peak = int(_proc_status(worker.pid, "VmHWM").split()[0]) * 1024
        samples = list(client.jobs.get(job.id).samples())
        sessions = list(client.sessions.list(job_id=job.id))
    return {
        "samples": len(samples),
        "sessions": len(sessions),
        "seconds": seconds,
        "samples_per_hour": 3600 * len(samples) / seconds,
        "generated_tokens": sum(s.generated_tokens or 0 for s in samples),
        "rows_kept": sum(s.rows * len(s.hooks) for s in sessions),
        "rows_kept_per_second": sum(s.rows * len(s.hooks) for s in sessions) / seconds,
        "bytes_stored": sum(s.bytes for s in sessions),
        "worker_peak_rss_bytes": peak,
    }, [s.prompt or "" for s in samples]


def baseline(model_folder: Path, prompts: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """The same prompts through `generate`, without capture and without a service."""
    torch.set_num_threads(arguments.threads)
    tokenizer = AutoTokenizer.from_pretrained(model_folder, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype="auto")
    started, tokens = time.monotonic(), 0
    for at in range(0, len(prompts), BASELINE_BATCH):
        batch = tokenizer(
            prompts[at : at + BASELINE_BATCH], return_tensors="pt", padding=True, add_special_tokens=False
        )
        with torch.inference_mode():
            out = model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                max_new_tokens=arguments.max_tokens,
                do_sample=False,
            )
        tokens += out[:, batch["input_ids"].shape[1] :].numel()
    seconds = time.monotonic() - started
    return {
        "samples": len(prompts),
        "seconds": seconds,
        "samples_per_hour": 3600 * len(prompts) / seconds,
        "generated_tokens": tokens,
        "peak_rss_bytes": psutil.Process().memory_info().rss,
    }


def _medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median of each figure."""
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def _proc_status(pid: int, field: str) -> str:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return line.partition(":")[2].strip()
    raise SystemExit(f"no {field} for process {pid}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--problems", type=Path, required=True, help="JSONL of question and answer")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--qwen3-0.6b", dest="large", action="store_true", help="random weights, that shape")
    parser.add_argument(
        "--dtype", default="float32", choices=["float32", "bfloat16"], help="of random weights"
    )
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    with tempfile.TemporaryDirectory(prefix="actograph-bench-") as scratch:
        model: Path = arguments.model
        if arguments.large:
            model = Path(scratch) / "model"
            random_weights(arguments.model, model, getattr(torch, arguments.dtype))
        services, plains = [], []
        for number in range(arguments.rounds):
            found, prompts = drain(model, arguments, Path(scratch) / f"home-{number}")
            services.append(found)
            plains.append(baseline(model, prompts, arguments))
    service, plain = _medians(services), _medians(plains)
    ratios = [a["samples_per_hour"] / b["samples_per_hour"] for a, b in zip(services, plains, strict=True)]
    result = {
        "model": "random weights, Qwen3-0.6B shape" if arguments.large else arguments.model.name,
        "max_tokens": arguments.max_tokens,
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "service": service,
        "transformers_generate": plain,
        "seconds": {"service": [r["seconds"] for r in services], "generate": [r["seconds"] for r in plains]},
        "ratios_samples_per_hour": ratios,
        "ratio_samples_per_hour": statistics.median(ratios),
    }
    table = Table(
        "",
        "service with capture",
        f"generate, batch {BASELINE_BATCH}, no capture",
        title=str(result["model"]),
    )
    for key in service:
        table.add_row(key, *(f"{side[key]:,.0f}" if key in side else "" for side in (service, plain)))
    spread = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    Console().print(table, f"samples/hour, ratio: {result['ratio_samples_per_hour']:.2f} ({spread})")
    write_result(arguments.json, result)


if __name__ == "__main__":
    main()
