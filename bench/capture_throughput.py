"""Cost of capture: tokens per second with it ÷ without it, in the same engine.

    python -m bench.capture_throughput [--models python-bound qwen3-0.6b] [--batches 1 8] [--sae 16384]
        [--json FILE]

The small model (28 layers, hidden 64) does nearly no arithmetic, so that it shows the cost of
Python and of launching work; the Qwen3-0.6B shape (random weights) shows a real forward pass. Each of
the cases takes about `--seconds`, in rounds of one short generation per variant; the variants turn
within each round. Judged on CPU time of the whole process (the delivery thread included; on a GPU on wall
time), as the median of the ratios of each round, with quartiles.
"""

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from actograph.contract import hooks as grammar
from actograph.contract.saes import SaeConfig
from actograph.contract.specs import SamplingSpec
from bench.marks import Mark, median_and_quartiles, print_marks, write_result
from bench.shapes import PYTHON_BOUND, QWEN3_06B
from tests.support.engine_run import generate
from tests.support.saes import write_sae
from worker.engine.engine import Engine
from worker.engine.messages import Capture, Encoding, Request, Rows, RunOptions
from worker.engine.model.load import wrap_model

SHAPES = {"python-bound": PYTHON_BOUND, "qwen3-0.6b": QWEN3_06B}
#: prompt and generated tokens of one round: short, so that there are many rounds
LENGTHS = {"python-bound": (64, 48), "qwen3-0.6b": (16, 12)}
NO_CAPTURE = "no capture"
#: least ratio to no capture
MARKS = {"3 layers x 2 points": 0.97, "all layers x 2 points": 0.90}
#: the same by model: a model without arithmetic does not show what queries and keys cost beside it
MARKS_OF_MODEL = {"qwen3-0.6b": {"queries and keys of all layers": 0.95}}
#: with `--sae`, of one layer; and least ratio to no capture by model
SAE = "an SAE of one layer"
MARKS_OF_SAE = {"qwen3-0.6b": 0.90}


class CountingSink:
    """Counts rows and bytes and drops them: the cost of storing is measured elsewhere."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0

    def write(self, index: int, rows: Mapping[str, Rows]) -> None:
        self.rows += sum(c.count for c in rows.values())
        self.bytes += sum(piece.nbytes for c in rows.values() for piece in c.pieces)


def build(shape: dict[str, int], dtype: torch.dtype, device: str) -> Engine:
    torch.manual_seed(0)
    config = Qwen3Config(**shape, max_position_embeddings=4096, bos_token_id=None, eos_token_id=None)  # type: ignore[arg-type]
    with torch.device(device):
        model: Any = Qwen3ForCausalLM(config)
    model.to(dtype)
    model.generation_config.eos_token_id = None  # every run generates all its tokens
    wrap: Any = PreTrainedTokenizerFast
    plain = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    return Engine(wrap_model(model, wrap(tokenizer_object=plain), name="bench"))


def variants(engine: Engine, encoding: Encoding | None) -> dict[str, Capture]:
    points = ["attn_in", "mlp_in"]
    hooks = {
        NO_CAPTURE: [],
        "3 layers x 2 points": grammar.expand(points, None, [], engine.structure),
        "all layers x 2 points": grammar.expand(points, "all", [], engine.structure),
        "queries and keys of all layers": grammar.expand(["q", "k"], "all", [], engine.structure),
    }
    found = {name: Capture(hooks=tuple(names)) for name, names in hooks.items()}
    return found if encoding is None else found | {SAE: Capture(hooks=(), encodings=(encoding,))}


def sae_of(engine: Engine, latents: int, folder: Path) -> Encoding:
    """A random SAE of the residual stream in the middle of the model."""
    width = engine.structure.hidden_size
    write_sae(folder, d_in=width, d_sae=latents)
    config = SaeConfig(architecture="standard", d_in=width, d_sae=latents)
    hook = f"resid_post.{engine.structure.num_layers // 2}"
    path = str(folder / "sae_weights.safetensors")
    return Encoding(name="sae:bench", hook=hook, top=64, config=config, sha256="bench", path=path)


def measure(
    engine: Engine,
    *,
    seconds: float,
    least_rounds: int,
    batch: int,
    prompt: int,
    tokens: int,
    encoding: Encoding | None = None,
) -> dict[str, list[tuple[float, float]]]:
    """Variant -> (wall, CPU) seconds of each round; the order turns from round to round."""
    vocab = engine.structure.vocab_size
    generator = torch.Generator().manual_seed(1)
    requests = [
        Request(
            key=str(i),
            prompt_ids=tuple(torch.randint(vocab, (prompt,), generator=generator).tolist()),
            seed=i,
        )
        for i in range(batch)
    ]
    chosen = variants(engine, encoding)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
    turn, end = -1, time.monotonic() + seconds  # round -1 warms up
    while turn < least_rounds or time.monotonic() < end:
        names = list(chosen)
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            sink, capture = CountingSink(), chosen[name]
            tensors = len(capture.hooks) + 2 * len(capture.encodings)
            gc.collect()  # what one variant leaves must not be another's to collect
            wall, cpu = time.perf_counter(), time.process_time()
            made = generate(
                engine,
                [replace(request, capture=capture if tensors else None) for request in requests],
                sampling=SamplingSpec(max_tokens=tokens),
                sink=sink if tensors else None,
                options=RunOptions(slots=batch),
            )
            spent = time.perf_counter() - wall, time.process_time() - cpu
            if any(g.error or len(g.generated_ids) != tokens for g in made):
                raise RuntimeError(f"{name}: a generation failed")
            if sink.rows != tensors * batch * (prompt + tokens - 1):
                raise RuntimeError(f"{name}: {sink.rows} rows were captured")
            if turn >= 0:
                times[name].append(spent)
        turn += 1
    return times


def summarise(times: dict[str, list[tuple[float, float]]], generated: int) -> dict[str, Any]:
    """Ratios of each variant to no capture, round by round; above 1 is faster than no capture."""
    base = times[NO_CAPTURE]
    summary: dict[str, Any] = {}
    for name, rounds in times.items():
        entry: dict[str, Any] = {
            "tokens_per_second": round(generated / statistics.median(w for w, _ in rounds), 1)
        }
        for i, clock in enumerate(("wall", "cpu")):
            ratios = sorted(b[i] / r[i] for b, r in zip(base, rounds, strict=True))
            middle, quartiles = median_and_quartiles(ratios)
            entry[f"ratio_{clock}"] = {
                "median": round(middle, 4),
                "quartiles": [round(q, 4) for q in quartiles],
                "range": [round(ratios[0], 4), round(ratios[-1], 4)],
            }
        summary[name] = entry
    return summary


def report(case: dict[str, Any]) -> None:
    print(f"\n{case['model']}, batch {case['batch']}, {case['rounds']} rounds")
    print(f"{'':32}{'tokens/s':>10}   {'ratio, CPU time':26}{'ratio, wall time':26}")
    for name, entry in case["variants"].items():
        cells = [
            f"{entry[k]['median']:.3f} [{entry[k]['quartiles'][0]:.3f}, {entry[k]['quartiles'][1]:.3f}]"
            for k in ("ratio_cpu", "ratio_wall")
        ]
        print(f"{name:32}{entry['tokens_per_second']:>10}   {cells[0]:26}{cells[1]:26}")


def marks_of(case: dict[str, Any], device: str) -> list[Mark]:
    clock = "ratio_cpu" if device == "cpu" else "ratio_wall"
    found = []
    bounds = MARKS | MARKS_OF_MODEL.get(case["model"], {})
    if SAE in case["variants"] and case["model"] in MARKS_OF_SAE:
        bounds[SAE] = MARKS_OF_SAE[case["model"]]
    for name, bound in bounds.items():
        ratio = case["variants"][name][clock]
        low, high = ratio["quartiles"]
        found.append(
            Mark(
                name=f"{case['model']}, batch {case['batch']}: {name} / no capture",
                measured=ratio["median"],
                at_least=bound,
                quartiles=(low, high),
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--seconds", type=float, default=90.0, help="of each case, about")
    parser.add_argument("--rounds", type=int, default=9, help="of each case, at least")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--sae", type=int, default=0, help="latents of an SAE to encode with; 0: none")
    parser.add_argument("--json", type=Path, help="write the result here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logs: Any = transformers.logging
    logs.set_verbosity_error()
    print(f"{args.device}, {args.dtype}, {args.threads} threads")
    cases: list[dict[str, Any]] = []
    marks: list[Mark] = []
    for model in args.models:
        engine = build(SHAPES[model], getattr(torch, args.dtype), args.device)
        prompt, tokens = LENGTHS[model]
        folder = tempfile.TemporaryDirectory()
        encoding = sae_of(engine, args.sae, Path(folder.name)) if args.sae else None
        for batch in args.batches:
            times = measure(
                engine,
                seconds=args.seconds,
                least_rounds=args.rounds,
                batch=batch,
                prompt=prompt,
                tokens=tokens,
                encoding=encoding,
            )
            case = {
                "model": model,
                "batch": batch,
                "prompt_tokens": prompt,
                "generated_tokens": tokens,
                "rounds": len(times[NO_CAPTURE]),
                "variants": summarise(times, batch * tokens),
            }
            report(case)
            cases.append(case)
            marks += marks_of(case, args.device)
        del engine
        folder.cleanup()
        gc.collect()
    print()
    print_marks(marks)
    settings = {"device": args.device, "dtype": args.dtype, "threads": args.threads}
    write_result(args.json, {**settings, "cases": cases}, marks)


if __name__ == "__main__":
    main()
