"""Inspect through its OpenAI provider against the service, 20 problems."""

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.integration.openai.conftest import Service

PROBLEMS = 20


def problems() -> list[dict[str, str]]:
    """Of the kind that tiny-qwen3 was trained on."""
    chance = random.Random(11)
    rows = []
    for _ in range(PROBLEMS):
        a, b = chance.randint(10, 99), chance.randint(10, 99)
        question = f"Anna buys {a} stamps and then buys {b} more. How many stamps did Anna buy?"
        rows.append({"question": question, "answer": f"#### {a + b}"})
    return rows


def test_inspect_evaluates_through_the_service(
    service: Service, run_inspect: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    rows = problems()
    done = run_inspect(
        Path(__file__).parents[1] / "inspect_evaluation.py",
        f"{service.url}/v1", "tiny-qwen3", "64", str(tmp_path / "logs"),
        given="".join(json.dumps(row) + "\n" for row in rows),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    # Inspect names the hooks of installed packages, ours among them, before anything else
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == PROBLEMS
    for row, answer in zip(rows, found, strict=True):
        right = row["answer"].removeprefix("#### ")
        assert answer["correct"] == (answer["completion"].rstrip().endswith(f"#### {right}"))
    assert sum(answer["correct"] for answer in found) >= 0.9 * PROBLEMS
    assert {job.kind for job in service.jobs()} == {"chat"}
    assert len(service.jobs()) == PROBLEMS
