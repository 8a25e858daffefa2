"""The table of batch sizes in docs/internals/performance.md is what `bench.memory_plan` prints."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import REPO

pytestmark = pytest.mark.integration
DOCS = REPO / "docs" / "internals" / "performance.md"
GIB = 1 << 30
CUDA_BYTES = GIB
#: bytes of an attention mask for each pair of tokens: a bool, and a bfloat16 of which two exist
MASK_BYTES = 5


def planned(folder: Path, *arguments: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Rows of the printed table and the plans of the JSON result."""
    result = folder / "plan.json"
    command = [sys.executable, "-m", "bench.memory_plan", "--json", str(result), *arguments]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[2:], json.loads(result.read_text())["plans"]


def test_cards_are_planned_as_documented(tmp_path: Path) -> None:
    rows, plans = planned(tmp_path)
    assert len(rows) == 4
    assert set(rows) <= set(DOCS.read_text().splitlines())
    for plan in plans:
        # only the cap keeps a batch from using the allowed share of the card
        allowed = 0.6 * (plan["card_gib"] * GIB - CUDA_BYTES - plan["weights"])
        device = sum(plan[part] for part in ("cache", "activations", "logits", "attention", "in_flight"))
        assert device <= allowed
        assert plan["batch"] == 256 or device * (plan["batch"] + 2) / plan["batch"] > allowed


def test_the_mask_is_counted_for_each_pair_of_tokens(tmp_path: Path) -> None:
    _, plans = planned(tmp_path, "--prompt", "4096")
    for plan in plans:
        assert plan["attention"] == plan["batch"] * 4096**2 * MASK_BYTES
