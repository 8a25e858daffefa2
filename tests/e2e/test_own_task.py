"""A task of one's own, from a YAML file and a JSONL file through the whole service.

tiny-qwen3 was trained on bare questions, without the frame that GSM8K's prompt puts around them.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actograph.cli.main import main
from actograph.client.http import Client

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

TASK = """
name: additions
dataset: additions.jsonl
prompt: "{{story}}"
target: "{{a + b}}"
question: story
scorers: [numeric, strict-match, {name: efficiency, target_tokens: 40}]
"""


def problems(count: int) -> list[dict[str, Any]]:
    """Of the kind that the model was trained on, though not the very same."""
    chance = random.Random(5)
    rows = []
    for _ in range(count):
        a, b = chance.randint(10, 99), chance.randint(10, 99)
        first, second = chance.sample(["Tom", "Anna", "Ben", "Mia", "Sam", "Lily"], 2)
        thing = chance.choice(["apples", "books", "coins", "eggs"])
        story = f"{first} has {a} {thing} and {second} has {b} {thing}. How many do they have in total?"
        rows.append({"story": story, "a": a, "b": b})
    return rows


def test_the_bare_question_is_answered(
    up: Callable[..., Any],
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "additions.yaml").write_text(TASK)
    rows = problems(100)
    (folder / "additions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    service = up("--data-root", str(folder), model=str(shared / "models" / "tiny-qwen3"))
    service.await_ready()
    monkeypatch.setenv("ACTOGRAPH_URL", service.url)
    assert main(["eval", str(folder / "additions.yaml"), "--max-tokens", "64", "--tag", "own"]) == 0
    with Client(service.url) as client:
        (job,) = client.jobs(tag="own")
        results = client.results(job.id)
        assert results.task == "additions"
        baseline = results.conditions["baseline"]
        accuracy = baseline.metrics["exact_match,numeric"]
        assert accuracy is not None and accuracy >= 0.95
        assert baseline.metrics["exact_match,strict-match"] == accuracy
        assert baseline.unparsed["exact_match,numeric"] == 0
        first = next(client.samples(job.id))
        assert first.input["question"] == rows[0]["story"]
        assert first.input["answer"] == str(rows[0]["a"] + rows[0]["b"])
        assert first.prompt is not None and f"user\n{rows[0]['story']}" in first.prompt
        # the same file under a data root, the same rows by path, and a condition
        again = client.submit(
            {
                "kind": "evaluation",
                "model": "tiny-qwen3",
                "task": {"path": "additions.yaml"},
                "dataset": {"path": "additions.jsonl"},
                "limit": 5,
                "sampling": {"max_tokens": 64},
                "conditions": [{"name": "polite", "suffix": "Please!"}],
            }
        )
        # what the file holds is kept with the job, which no longer needs it
        assert again.spec["task"]["prompt"] == "{{story}}"
        assert main(["jobs", "watch", again.id]) == 0
        assert all("total? Please!" in str(sample.prompt) for sample in client.samples(again.id))
    assert service.stop() == 0
