"""How many tokens differ between the streaming engine and plain generation, one prompt at a time.

    python -m bench.same_tokens [--model DIR] [--problems FILE.jsonl] [--samples 48] [--json FILE]

The same prompts run greedily through `transformers.generate` alone and through the streaming engine with
`--slots` rows at once. In float32 no token should differ. In bfloat16 matrix products of other shapes round
otherwise, so two tokens of nearly equal logits may change places. After the first such token the texts go
apart: "first" counts these tokens alone, "all" every token from there on.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from actograph.contract.specs import SamplingSpec
from actograph.demo import MODEL_DIR, PROBLEMS
from tests.support.marks import Mark, print_marks, write_result
from worker.engine.engine import Engine
from worker.engine.model.load import load_model
from worker.engine.requests import GenerationRequest
from worker.engine.runs import RunPlan, RunRequest
from worker.engine.streaming.verification import Recorder

WAYS: tuple[tuple[str, Literal["float32", "bfloat16"], bool], ...] = (
    ("float32", "float32", False),
    ("float32, packed", "float32", True),
    ("bfloat16", "bfloat16", False),
)


def prompts_of(engine: Engine, problems: Path, samples: int) -> list[GenerationRequest]:
    lines = problems.read_text(encoding="utf-8").splitlines()[:samples]
    texts = [f"Question: {json.loads(line)['question']}\nAnswer:" for line in lines]
    tokenizer: Any = engine.model.tokenizer
    return [
        GenerationRequest(key=str(i), prompt_ids=tuple(tokenizer(text)["input_ids"]), seed=i)
        for i, text in enumerate(texts)
    ]


def generated(engine: Engine, request: GenerationRequest, most: int) -> list[int]:
    """Tokens of `transformers.generate` for one prompt."""
    ids = torch.tensor([request.prompt_ids], device=engine.model.device)
    hf: Any = engine.model.hf
    with torch.inference_mode():
        made = hf.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, do_sample=False
        )
    tokens: list[int] = made[0, len(request.prompt_ids) :].tolist()
    return tokens


def differing(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[str, float]:
    """Counts of tokens, and of those that differ, over pairs of texts."""
    tokens = first = everything = 0
    for one, other in pairs:
        longest = max(len(one), len(other))
        place = next(
            (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
        )
        tokens += longest
        first += place < longest
        everything += longest - place
    return {
        "samples": len(pairs),
        "tokens": tokens,
        "first": first,
        "first_per_1000": round(1000 * first / max(1, tokens), 3),
        "all_per_1000": round(1000 * everything / max(1, tokens), 3),
    }


def measured(arguments: argparse.Namespace, dtype: Literal["float32", "bfloat16"], packed: bool) -> Any:
    engine = Engine(load_model(str(arguments.model), dtype=dtype, device=arguments.device, name="bench"))
    streaming = engine.streaming()
    if streaming is None:
        raise SystemExit(f"streaming was refused: {engine.streaming_refusal}")
    requests = prompts_of(engine, arguments.problems, arguments.samples)
    plain = [generated(engine, request, arguments.max_tokens) for request in requests]
    if packed:
        engine.pack_weights("always")
        if engine.structure.packing_refusal is not None:
            return {"refused": engine.structure.packing_refusal}
    desk = Recorder([RunRequest(request) for request in requests])
    plan = RunPlan(sampling=SamplingSpec(max_tokens=arguments.max_tokens))
    streaming.run(plan, source=desk, results=desk, control=desk, most=arguments.slots)
    return differing(
        [(desk.generations[r.key].generated_ids, one) for r, one in zip(requests, plain, strict=True)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--problems", type=Path, default=PROBLEMS, help="JSONL with questions")
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    found = {name: measured(arguments, dtype, packed) for name, dtype, packed in WAYS}
    for name, counts in found.items():
        print(f"{name:16}", ", ".join(f"{key} {value}" for key, value in counts.items()))
    exact = [counts.get("first", 0) for name, counts in found.items() if name.startswith("float32")]
    mark = Mark(name="float32 texts that differ from plain generation", measured=sum(exact), at_most=0)
    print_marks([mark])
    settings = {name: getattr(arguments, name) for name in ("samples", "max_tokens", "slots", "device")}
    write_result(arguments.json, {"model": arguments.model.name, **settings, "ways": found}, [mark])


if __name__ == "__main__":
    main()
