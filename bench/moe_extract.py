"""An extraction of every layer of a mixture of experts: time, loads, and memory beside the stored rows.

    python -m bench.moe_extract [--texts 16] [--tokens 2048] [--width 256] --json results.json

The model has OLMoE's shape (16 layers, 64 experts, 8 of them per token) with small widths and random weights.
The job stores `attn_in`, `mlp_in`, router logits and chosen experts of every token, and an outlier job then
reads them. Memory is the peak of the process during the extraction beyond its size after one short text, with
the model loaded (Linux alone tells it).
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import torch
from transformers import OlmoeConfig, OlmoeForCausalLM

from actograph.contract.resources import JobStatus
from actograph.contract.specs import ExtractSpec, OutliersSpec
from storage.jobs import jobs
from storage.samples.expansion import extract_samples
from tests.support.analysis_bench import WORKER, AnalysisBench, analysis_bench
from tests.support.marks import Mark, print_marks, write_result
from worker.drain.drain import Drain
from worker.signals.stop_signal import StopSignal

_PROC = Path("/proc/self")
LAYERS, EXPERTS, CHOSEN = 16, 64, 8
MODEL = "olmoe-shaped"
POINTS = ["attn_in", "mlp_in", "router_logits", "expert_indices"]


def write_model(folder: Path, tokenizer: Path, width: int, tokens: int) -> None:
    """Write a random model that reads at most `tokens` tokens."""
    torch.manual_seed(0)
    config = OlmoeConfig(
        vocab_size=65_536,
        hidden_size=width,
        intermediate_size=width // 2,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        max_position_embeddings=tokens,
    )
    OlmoeForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder)


def extract(bench: AnalysisBench, texts: list[str]) -> str:
    """Run an extraction to its end. Returns its id."""
    inputs = [{"prompt": text} for text in texts]
    capture = {"points": POINTS}
    spec = ExtractSpec.model_validate(
        {"kind": "extract", "model": MODEL, "inputs": inputs, "capture": capture, "truncate": True}
    )
    job_id = bench.create(spec, list(extract_samples(spec, ())))
    while True:
        Drain(
            settings=bench.settings,
            database=bench.database,
            store=bench.store,
            broker=None,  # type: ignore[arg-type]
            models=bench.holder,
            worker_id=WORKER,
            stop=StopSignal.create(bench.settings.home),
        ).run_slice(job_id)
        with bench.database.read() as session:
            row = jobs.get(session, job_id)
            if row.status not in (JobStatus.QUEUED, JobStatus.IN_PROGRESS):
                break
    if row.failed or row.status != JobStatus.COMPLETED:
        raise SystemExit(f"the extraction ended as {row.status} with {row.failed} failures")
    return job_id


def memory_bytes(field: str) -> int:
    """Memory of this process: `VmRSS` now, `VmHWM` at most since the peak was reset."""
    (line,) = [one for one in _PROC.joinpath("status").read_text().splitlines() if one.startswith(field)]
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--tokenizer", type=Path, default=Path("shared/models/tiny-qwen3"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory(prefix="actograph-bench-") as folder:
        model, home = Path(folder) / "model", Path(folder) / "home"
        home.mkdir()
        write_model(model, options.tokenizer, options.width, options.tokens)
        with analysis_bench(home, MODEL, model) as bench:
            result, marks = measure(bench, options)
    print_marks(marks)
    write_result(options.json, result, marks)


def measure(bench: AnalysisBench, options: argparse.Namespace) -> tuple[dict[str, object], list[Mark]]:
    """Extract, analyse, and compare memory with the stored rows."""
    extract(bench, ["one and two are three"])
    engine, loaded = bench.holder.engine_for(MODEL), memory_bytes("VmRSS")
    _PROC.joinpath("clear_refs").write_text("5")  # resets the peak
    began = time.perf_counter()
    # every word is a token at least, and the context cuts the rest
    job_id = extract(bench, ["one and two are three " * options.tokens] * options.texts)
    seconds, growth = time.perf_counter() - began, memory_bytes("VmHWM") - loaded
    readers = bench.readers(job_id)
    tokens = sum(reader.manifest.prompt_tokens for reader in readers)
    stored = sum(file.bytes for reader in readers for file in reader.manifest.files)
    reloads = int(bench.holder.engine_for(MODEL) is not engine)
    began = time.perf_counter()
    spec = OutliersSpec.model_validate({"kind": "outliers", "jobs": [job_id]})
    analysis = bench.analyse(spec).analysis
    if analysis is None:
        raise SystemExit("the outlier job has no result")
    marks = [
        Mark(name="tokens", measured=float(tokens), at_least=float(options.texts * options.tokens)),
        Mark(name="reloads of the model", measured=float(reloads), at_most=0.0),
        Mark(name="memory beyond the model ÷ stored bytes", measured=growth / stored, at_most=0.9),
    ]
    result: dict[str, object] = {
        "texts": options.texts,
        "tokens": tokens,
        "width": options.width,
        "layers": LAYERS,
        "experts": EXPERTS,
        "seconds": seconds,
        "stored_bytes": stored,
        "loaded_bytes": loaded,
        "growth_bytes": growth,
        "analysis_seconds": time.perf_counter() - began,
    }
    return result, marks


if __name__ == "__main__":
    main()
