"""Batch sizes and memory by part, as the worker plans them, for models and cards that need not be there.

    python -m bench.memory_plan [--prompt 512] [--tokens 512] [--json result.json]

Everything follows from the shapes: bfloat16, SDPA, `attn_in` and `mlp_in` at every layer of every token, the
worker's default settings. A card's free memory is its size without the weights and 1 GiB for CUDA itself.
Prints the table of docs/internals/performance.md.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from actograph import plans
from actograph.contract.models import HookInfo, ModelStructure
from actograph.contract.specs import CaptureSpec
from actograph.plans import Budget, batch_cap, batch_memory, batch_size, capture_need
from actograph.settings import Settings
from bench.marks import write_result
from bench.shapes import LLAMA_8B, QWEN3_06B

GIB = 1 << 30
CUDA_BYTES = GIB
CARDS = (24, 80)
SHAPES: Mapping[str, tuple[dict[str, int], bool]] = {
    "Qwen3-0.6B": (QWEN3_06B, True),
    "8B, Llama's shape": (LLAMA_8B, False),
}
PARTS = ("cache", "activations", "logits", "attention", "in_flight", "rows")
ITEM = 2  # bytes of a bfloat16


def structure(shape: Mapping[str, int], *, tied: bool) -> ModelStructure:
    """The structure that a worker would find for a model of this shape."""
    config, factory = Qwen3Config(tie_word_embeddings=tied), cast(Any, AutoModelForCausalLM)
    config.update(dict(shape))
    with torch.device("meta"):
        model = factory.from_config(config)
    points = [
        f"{point}.{layer}" for layer in range(shape["num_hidden_layers"]) for point in ("attn_in", "mlp_in")
    ]
    width = shape["hidden_size"]
    return ModelStructure(
        model="shape",
        architecture="X",
        num_layers=shape["num_hidden_layers"],
        hidden_size=width,
        vocab_size=shape["vocab_size"],
        context_length=32_768,
        dtype="bfloat16",
        device="cuda:0",
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        chat_template=True,
        eos_token_ids=[],
        hooks={point: HookInfo(location=point, width=width, dtype="bfloat16") for point in points},
        module_locations=points,
        kv_bytes_per_token=2
        * shape["num_hidden_layers"]
        * shape["num_key_value_heads"]
        * shape["head_dim"]
        * ITEM,
        mask_bytes_per_pair=1 + 2 * ITEM,
    )


def plan(shape: ModelStructure, card: int, *, prompt: int, tokens: int) -> tuple[int, dict[str, int]]:
    """Samples at once on a card of so many GiB, and the bytes of each part."""
    hooks, everything = list(shape.hooks), CaptureSpec()
    budget = Budget(
        device_bytes=card * GIB - plans.weights_bytes(shape) - CUDA_BYTES,
        host_buffer_bytes=Settings.model_fields["host_buffer_bytes"].default,
        cap=batch_cap(on_gpu=True),
        on_gpu=True,
    )
    need = capture_need(shape, hooks, everything, prompt_tokens=prompt)
    sizes = {"prompt_tokens": prompt, "max_tokens": tokens}
    kv_bytes = shape.kv_bytes_per_token or 0
    samples = batch_size(shape, kv_bytes, need, budget, **sizes)
    sample = plans.tensor_bytes(shape, hooks, everything, prompt_tokens=prompt, generated_tokens=tokens)
    rows = min(budget.host_buffer_bytes, samples * sample)
    memory = batch_memory(shape, kv_bytes, need, samples=samples, **sizes)
    return samples, {**{part: int(getattr(memory, part)) for part in PARTS[:-1]}, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the longest prompt")
    parser.add_argument("--tokens", type=int, default=512, help="max_tokens")
    parser.add_argument("--json", type=Path, help="write the result here")
    args = parser.parse_args()
    found: list[dict[str, Any]] = []
    print("| model | card | weights | batch | " + " | ".join(PARTS) + " |")
    print("|---|---|---|---|" + "---|" * len(PARTS))
    for name, (shape, tied) in SHAPES.items():
        model = structure(shape, tied=tied)
        for card in CARDS:
            samples, parts = plan(model, card, prompt=args.prompt, tokens=args.tokens)
            weights = plans.weights_bytes(model)
            cells = [name, f"{card} GB", f"{weights / GIB:.1f}", str(samples)]
            print("| " + " | ".join([*cells, *(f"{size / GIB:.2f}" for size in parts.values())]) + " |")
            found.append({"model": name, "card_gib": card, "weights": weights, "batch": samples, **parts})
    write_result(args.json, {"prompt_tokens": args.prompt, "max_tokens": args.tokens, "plans": found}, [])


if __name__ == "__main__":
    main()
