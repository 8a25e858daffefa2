"""Peak memory and time of an all-layer extraction, against holding everything.

    python -m bench.prefill_chunks [--rounds 3] [--sequences 16] [--tokens 2048] [--json FILE]

A mixture of experts of 4 layers and 64 experts (Qwen3-MoE from its config, random weights, float32 on the
CPU) reads `--sequences` texts of `--tokens` tokens in one batch, with every dense point and every router
point of all layers. Each measurement is a process of its own that notes what is in use when the model is
built and one short text was read, runs once, and takes the peak of the resident size and its CPU time.

* "forward alone": the model's forward through the engine, with one row kept: what no extraction goes below.
* "engine", "unchunked": the engine with session files written; the latter holds all layers' rows.
* "naive script": transformers' `output_hidden_states` and forward hooks, everything held, then saved as
  one safetensors file per sequence, or summed up. It stores each state of the stream once where the
  engine stores it under both its names, and does not check, hash or sync what it writes.

Tensors are stored first, and in other runs per-channel statistics alone; the engine computes these while rows
pass, so there unchunked would hold no rows either.

The stated bound: what the engine adds to the forward alone is at most `ALLOWED` times the rows of
one layer of the batch. Time is judged by the ratios of CPU time within each round. OpenMP's threads sleep
while they wait: spinning counts as CPU time, doubled it on a busy machine and made the ratio anything
from 0.9 to 1.3.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3MoeConfig

from actograph.contract import hooks as grammar
from actograph.contract.hooks import LAYER_POINTS
from actograph.contract.row_selection import StatsSpec
from actograph.contract.specs import CaptureSpec
from storage.artifacts.factory import open_store
from storage.samples import LeasedSample
from tests.support import process_memory
from tests.support.marks import Mark, median_and_quartiles, print_marks, write_result
from worker.engine.engine import Engine
from worker.engine.model.load import wrap_model
from worker.engine.requests import BufferOptions, GenerationRequest
from worker.engine.rows.statistics import Statistics
from worker.sample.recording import Provenance, Recorded, UnitRecorder
from worker.sample.segments import Markup

MIB = 1 << 20
ALLOWED = 1.5
#: of the peak of what holds all layers' rows
SHARE = 0.85
SLOWER = 1.1
FORWARD, CHUNKED, UNCHUNKED, NAIVE = "forward alone", "engine", "unchunked", "naive script"
WHATS = ("tensors", "statistics")
RUNS = [
    *((name, "tensors") for name in (FORWARD, CHUNKED, UNCHUNKED, NAIVE)),
    *((name, "statistics") for name in (CHUNKED, NAIVE)),
]
CONFIG = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 8192,
}


def build() -> Engine:
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(Qwen3MoeConfig(**CONFIG, bos_token_id=None, eos_token_id=None))  # type: ignore[arg-type]
    wrap: Any = PreTrainedTokenizerFast
    plain = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    return Engine(wrap_model(model, wrap(tokenizer_object=plain), name="bench"))


def measure(name: str, what: str, sequences: int, tokens: int) -> dict[str, float]:
    """One extraction in this process."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "4")))
    logs: Any = transformers.logging
    logs.set_verbosity_error()
    engine = build()
    points = [p for p in LAYER_POINTS if p not in ("expert_indices",) or what == "tensors"]
    hooks = grammar.expand(["embed", *points, "final_norm"], "all", [], engine.structure)
    generator = torch.Generator().manual_seed(1)

    def texts(count: int, length: int) -> list[GenerationRequest]:
        ids = torch.randint(engine.structure.vocab_size, (count, length), generator=generator).tolist()
        return [GenerationRequest(key=str(i), prompt_ids=tuple(row), seed=0) for i, row in enumerate(ids)]

    def run(requests: list[GenerationRequest]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            if name == NAIVE:
                naive(engine, hooks, requests, what, Path(folder))
            else:
                extract(name, engine, capture_spec(name, hooks, what), requests, Path(folder))

    run(texts(1, 16))
    requests = texts(sequences, tokens)
    process_memory.trim()
    before = process_memory.in_use(on_gpu=False)
    process_memory.reset_peak(on_gpu=False)
    wall, cpu = time.perf_counter(), time.process_time()
    run(requests)
    layer = [hook for hook in hooks if grammar.layer_of(hook) == 1]
    return {
        "peak": process_memory.peak(on_gpu=False) - before,
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "layer_rows": _row_bytes(engine, layer) * sequences * tokens,
        "rows": _row_bytes(engine, hooks) * sequences * tokens,
    }


def _row_bytes(engine: Engine, hooks: list[str]) -> int:
    tables = [engine.structure.hooks[hook] for hook in hooks]
    return sum(t.width * getattr(torch, t.dtype).itemsize for t in tables)


def capture_spec(name: str, hooks: list[str], what: str) -> CaptureSpec:
    """Data kept by a run."""
    if name == FORWARD:
        return CaptureSpec(hooks=hooks[-1:], mode="prefill", positions="last")
    stats = StatsSpec(tensors=False) if what == "statistics" else None
    return CaptureSpec(hooks=hooks, mode="prefill", stats=stats)


def extract(
    name: str, engine: Engine, capture: CaptureSpec, requests: list[GenerationRequest], folder: Path
) -> None:
    """Read the texts with the engine; sessions go to `folder`."""
    origin = Provenance(
        structure=engine.structure,
        tokenizer_sha256="0" * 64,
        template_sha256=None,
        capture=capture,
        hooks=capture.hooks,
        sampling=None,
        markup=Markup(engine.model.tokenizer),
    )
    leases = [
        LeasedSample(
            id=f"smp_{i:032x}",
            job_id="job_" + "0" * 32,
            sample_index=i,
            condition="",
            epoch=0,
            input={},
            seed=0,
            token=1,
        )
        for i in range(len(requests))
    ]
    recorder = UnitRecorder(open_store(folder.as_uri()), leases, origin)
    read = engine.prefill(
        requests,
        hooks=capture.hooks,
        sink=recorder,
        positions=origin.positions,
        shaping=origin.shaping,
        # unchunked means that nothing is handed on before the end
        options=BufferOptions() if name != UNCHUNKED else BufferOptions(host_buffer_bytes=1 << 50),
    )
    stored = recorder.finish(dict(enumerate(read)))
    if not all(isinstance(session, Recorded) for session in stored.values()):
        raise RuntimeError(f"a session was not stored: {stored}")


def naive(
    engine: Engine, hooks: list[str], requests: list[GenerationRequest], what: str, folder: Path
) -> None:
    """Baseline script: hold every tensor of one forward pass, then save or sum up."""
    hf: Any = engine.model.hf
    held: dict[str, torch.Tensor] = {}
    handles = []
    for hook in hooks:
        if hook.startswith(("resid_pre.", "resid_post.", "embed", "final_norm")):
            continue  # these are the hidden states
        path, side, *part = _place(engine.structure.hooks[hook].location)
        module = hf.get_submodule(path)
        handles.append(module.register_forward_hook(_keeper(held, hook, side, part), with_kwargs=True))
    ids = torch.tensor([r.prompt_ids for r in requests])
    try:
        with torch.inference_mode():
            output = hf(input_ids=ids, output_hidden_states=True, use_cache=False, logits_to_keep=1)
    finally:
        for handle in handles:
            handle.remove()
    for i, state in enumerate(output.hidden_states):
        held[f"hidden_states.{i}"] = state
    batch = len(requests)
    rows = {hook: t.reshape(batch, -1, t.shape[-1]) for hook, t in held.items()}
    for i in range(batch):
        if what == "tensors":
            save_file({h: t[i].contiguous() for h, t in rows.items()}, folder / f"{i}.safetensors")
        else:
            kind = Statistics(None)
            sums = {
                f"{h}.{name}": value.reshape(-1).clone()
                for h, t in rows.items()
                for name, value in kind.of(t[i : i + 1].unsqueeze(1), None).items()
            }
            save_file(sums, folder / f"{i}.safetensors")


def _place(location: str) -> list[str]:
    head, _, tail = location.rpartition(".")
    if tail.isdigit():
        path, _, side = head.rpartition(".")
        return [path, side, tail]
    return [head, tail]


def _keeper(held: dict[str, torch.Tensor], hook: str, side: str, part: list[str]) -> Callable[..., None]:
    def keep(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        value = output if side == "output" else (args or list(kwargs.values()))[0]
        if isinstance(value, tuple):
            value = value[int(part[0]) if part else 0]
        held[hook] = value.detach()

    return keep


def in_process(name: str, what: str, args: argparse.Namespace) -> dict[str, float]:
    """`measure` in a fresh process."""
    command = [sys.executable, "-m", "bench.prefill_chunks", "--one", name, "--what", what]
    command += ["--sequences", str(args.sequences), "--tokens", str(args.tokens)]
    # OpenMP's threads would wait for each other by spinning
    env = os.environ | {"OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--what", default="tensors", choices=WHATS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(measure(args.one, args.what, args.sequences, args.tokens)))
        return
    runs: dict[tuple[str, str], list[dict[str, float]]] = {run: [] for run in RUNS}
    for _ in range(args.rounds):
        for (name, what), found in runs.items():
            found.append(in_process(name, what, args))
    marks = report(runs, args)
    variants = [{"name": name, "stores": what, "rounds": found} for (name, what), found in runs.items()]
    shape = {"shape": CONFIG, "sequences": args.sequences, "tokens": args.tokens, "rounds": args.rounds}
    write_result(args.json, {**shape, "variants": variants}, marks)


def report(runs: dict[tuple[str, str], list[dict[str, float]]], args: argparse.Namespace) -> list[Mark]:
    """Print the table and the marks."""

    def middle(name: str, what: str, field: str) -> float:
        return statistics.median(found[field] for found in runs[name, what])

    rows, layer = (runs[CHUNKED, "tensors"][0][field] for field in ("rows", "layer_rows"))
    print(
        f"{args.sequences} sequences of {args.tokens} tokens, 4 layers, 64 experts: {rows / MIB:,.0f} MiB of "
        f"rows, {layer / MIB:,.0f} MiB a layer; medians of {args.rounds} [lowest, highest]"
    )
    print(f"{'':32}{'peak above rest, MiB':>30}{'CPU s':>20}{'wall s':>9}")
    for (name, what), found in runs.items():
        peaks = sorted(f["peak"] / MIB for f in found)
        cpus = sorted(f["cpu"] for f in found)
        label = name if name == FORWARD else f"{name}, {what}"
        peak = f"{statistics.median(peaks):,.0f} [{peaks[0]:,.0f}, {peaks[-1]:,.0f}]"
        cpu = f"{statistics.median(cpus):.1f} [{cpus[0]:.1f}, {cpus[-1]:.1f}]"
        print(f"{label:32}{peak:>30}{cpu:>20}{middle(name, what, 'wall'):>9.1f}")
    base = middle(FORWARD, "tensors", "peak")
    marks = [
        Mark(
            name=f"{what}: what the engine adds to the forward / rows of one layer",
            measured=(middle(CHUNKED, what, "peak") - base) / layer,
            at_most=ALLOWED,
        )
        for what in WHATS
    ]
    marks += [
        Mark(
            name=f"{what}: peak of 1 layer per pass / {other}",
            measured=middle(CHUNKED, what, "peak") / middle(other, what, "peak"),
            at_most=SHARE,
        )
        for what, other in (("tensors", UNCHUNKED), ("tensors", NAIVE), ("statistics", NAIVE))
    ]
    pairs = zip(runs[CHUNKED, "tensors"], runs[UNCHUNKED, "tensors"], strict=True)
    ratios = [chunked["cpu"] / unchunked["cpu"] for chunked, unchunked in pairs]
    ratio, quartiles = median_and_quartiles(ratios) if len(ratios) > 1 else (ratios[0], None)
    name = "tensors: CPU time of 1 layer per pass / unchunked"
    marks.append(Mark(name=name, measured=ratio, at_most=SLOWER, quartiles=quartiles))
    print_marks(marks)
    return marks


if __name__ == "__main__":
    main()
