"""How often rounding changes a token: greedy answers of the engine against plain forwards of the model.

    python -m bench.rounding --model DIR --gsm8k FOLDER [--shape 50m] [--dtype bfloat16] [--json FILE]

Problems are answered greedily, all live together. Then each prompt with its answer goes through one plain
forward of the same model, alone. A token differs where the plain forward's likeliest token at its place is
another. In float32 none should; in bfloat16 batches and their order change sums, so near ties fall otherwise.

The problems are also answered in reverse order with a third of the slots, as another night may meet them:
with and without `repeatable`, how many texts differ then, and how long both runs take.
"""

import argparse
import json
import os
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import psutil
import torch

from actograph.contract.specs import SamplingSpec
from bench.drain import random_weights
from bench.lm_eval_speed import SHAPES
from bench.marks import Mark, print_marks, write_result
from tests.support.engine_run import generate, requests_for
from worker.engine.engine import Engine
from worker.engine.messages import Generation, Request, RunOptions
from worker.engine.model.load import load_model


def differing(engine: Engine, generation: Generation) -> tuple[int, int]:
    """Tokens of an answer that a plain forward over it would not have chosen, and all of them."""
    hf: Any = engine.model.hf
    prompt, answer = generation.prompt_ids, generation.generated_ids
    with torch.inference_mode():
        logits = hf(input_ids=torch.tensor([[*prompt, *answer[:-1]]], device=hf.device)).logits[0]
    likeliest = logits[len(prompt) - 1 :].argmax(dim=-1).tolist()
    return sum(a != b for a, b in zip(likeliest, answer, strict=True)), len(answer)


def two_nights(
    engine: Engine, requests: list[Request], sampling: SamplingSpec, *, repeatable: bool
) -> dict[str, float]:
    """Texts that differ between a run of all problems and one in reverse with fewer slots; the seconds."""
    slots = len(requests)
    started = time.perf_counter()
    first = generate(
        engine, requests, sampling=sampling, options=RunOptions(slots=slots, repeatable=repeatable)
    )
    fewer = RunOptions(slots=max(1, slots // 3), repeatable=repeatable)
    second = generate(engine, requests[::-1], sampling=sampling, options=fewer)[::-1]
    pairs = zip(first, second, strict=True)
    return {
        "texts that differ": sum(one.generated_ids != other.generated_ids for one, other in pairs),
        "seconds": time.perf_counter() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="model folder with a tokenizer")
    parser.add_argument("--gsm8k", type=Path, required=True, help="folder of test.jsonl")
    parser.add_argument("--shape", choices=list(SHAPES), help="random weights of this shape")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=int, default=64, help="problems")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with (arguments.gsm8k / "test.jsonl").open() as lines:
        questions = [json.loads(line)["question"] for line in islice(lines, arguments.limit)]
    with tempfile.TemporaryDirectory(prefix="actograph-bench-") as scratch:
        model = arguments.model.resolve()
        if arguments.shape:
            model = Path(scratch)
            dtype = getattr(torch, arguments.dtype)
            random_weights(arguments.model, model, dtype, SHAPES[arguments.shape], end_share=80)
        engine = Engine(load_model(str(model), dtype=arguments.dtype, device=arguments.device))
        prompts = [f"Question: {question}\nAnswer:" for question in questions]
        sampling = SamplingSpec(max_tokens=arguments.max_tokens)
        made = generate(engine, requests_for(engine, prompts), sampling=sampling)
        counts = [differing(engine, generation) for generation in made]
        nights = {
            name: two_nights(engine, requests_for(engine, prompts), sampling, repeatable=name == "repeatable")
            for name in ("plain", "repeatable")
        }
    other, tokens = (sum(column) for column in zip(*counts, strict=True))
    print(f"{other} of {tokens} tokens differ in {arguments.dtype} ({100 * other / tokens:.3f} %)")
    for name, night in nights.items():
        print(
            f"{name}: {night['texts that differ']} of {len(prompts)} texts differ between two runs, "
            f"which take {night['seconds']:.1f} s"
        )
    marks = [
        Mark(
            name="texts that differ if repeatable",
            measured=nights["repeatable"]["texts that differ"],
            at_most=0,
        )
    ]
    float32 = [Mark(name="tokens that differ in float32", measured=other, at_most=0)]
    marks += float32 if arguments.dtype == "float32" else []
    print_marks(marks)
    result = {
        "model": f"random weights, {arguments.shape}" if arguments.shape else arguments.model.name,
        "engine": engine.structure.engine,
        "dtype": arguments.dtype,
        "device": arguments.device,
        "problems": arguments.limit,
        "tokens": tokens,
        "differing": other,
        "two runs": nights,
    }
    write_result(arguments.json, result, marks)


if __name__ == "__main__":
    main()
