"""The table of batch sizes in docs/operating.md is what the plan's arithmetic gives."""

from pathlib import Path

import pytest

from bench import memory_plan

DOCS = Path(__file__).resolve().parents[3] / "docs" / "operating.md"
GIB = 1 << 30


@pytest.mark.parametrize(
    ("name", "card", "samples"),
    [
        ("Qwen3-0.6B", 24, 98),
        ("Qwen3-0.6B", 80, 256),
        ("8B, Llama's shape", 24, 22),
        ("8B, Llama's shape", 80, 179),
    ],
)
def test_a_card_is_planned_as_documented(name: str, card: int, samples: int) -> None:
    shape, tied = memory_plan.SHAPES[name]
    model = memory_plan.structure(shape, tied=tied)
    planned, memory = memory_plan.plan(model, card, prompt=512, tokens=512)
    assert planned == samples
    parts = [getattr(memory, part) / GIB for part in memory_plan.PARTS]
    row = next(line for line in DOCS.read_text().splitlines() if line.startswith(f"| {name} | {card} GB |"))
    assert row.endswith(" | ".join([str(samples), *(f"{size:.2f}" for size in parts)]) + " |")
    # nothing but the cap keeps the batch from using what it may
    free = card * GIB - GIB - 2 * model.num_parameters
    assert memory.device <= 0.6 * free
    assert samples == 256 or memory.device * (samples + 2) / samples > 0.6 * free


def test_the_mask_is_counted_for_each_pair_of_tokens() -> None:
    shape, tied = memory_plan.SHAPES["Qwen3-0.6B"]
    model = memory_plan.structure(shape, tied=tied)
    samples, memory = memory_plan.plan(model, 24, prompt=4096, tokens=512)
    assert memory.attention == samples * 4096**2 * 5
