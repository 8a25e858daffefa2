"""lm-eval's own OpenAI backends against the service: the verdicts of our own evaluation."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.openai.conftest import Service

PROBLEMS = 50
MAX_TOKENS = 48
QUESTIONS = 6
FILTERS = ("strict-match", "flexible-extract")
BACKENDS = {"local-chat-completions": "chat/completions", "local-completions": "completions"}


def evaluated(service: Service, rows: bytes, *, chat: bool) -> list[dict[str, Any]]:
    """The samples of our own evaluation of the same problems, in their order."""
    with httpx.Client(base_url=service.url, timeout=60) as http:
        file = http.post("/v1/files", files={"file": ("rows.jsonl", rows)}).json()
        spec = {
            "kind": "evaluation",
            "model": "tiny-qwen3",
            "task": "gsm8k",
            "dataset": {"file_id": file["id"]},
            "apply_chat_template": chat,
            "sampling": {"max_tokens": MAX_TOKENS},
        }
        job = http.post("/v1/jobs", json=spec)
        assert job.status_code == 202, job.text
        url = job.headers["location"]
        while http.get(url).json()["status"] not in ("completed", "failed"):
            time.sleep(0.05)
        found: list[dict[str, Any]] = http.get(f"{url}/samples", params={"limit": 100}).json()["data"]
    assert len(found) == PROBLEMS
    return sorted(found, key=lambda sample: sample["sample_index"])


@pytest.mark.soak
@pytest.mark.parametrize("backend", BACKENDS)
def test_lm_eval_gives_our_verdicts(
    service: Service, lm_eval: Callable[..., list[dict[str, Any]]], shared: Path, backend: str
) -> None:
    chat = backend == "local-chat-completions"
    lines = (shared / "data/gsm8k/test.jsonl").read_bytes().splitlines(keepends=True)
    ours = evaluated(service, b"".join(lines[:PROBLEMS]), chat=chat)
    (theirs,) = lm_eval(
        {
            "op": "evaluate", "backend": backend, "base_url": f"{service.url}/v1/{BACKENDS[backend]}",
            "served": "tiny-qwen3", "model": str(shared / "models/tiny-qwen3"), "task": "gsm8k",
            "limit": PROBLEMS, "num_fewshot": 0, "max_tokens": MAX_TOKENS, "chat": chat,
        }
    )  # fmt: skip
    assert len(theirs["samples"]) == PROBLEMS
    for sample, other in zip(ours, theirs["samples"], strict=True):
        # a chat's text keeps the marks of thoughts, which this tokenizer counts as special
        assert sample["completion"] == re.sub("</?think>", "", other["completion"]), sample["sample_index"]
        for name in FILTERS:
            score = sample["scores"][f"exact_match,{name}"]
            found = [score["answer"] if score["answer"] is not None else "[invalid]", score["value"]]
            assert found == other["scores"][name], (sample["sample_index"], name)


@pytest.mark.parametrize("tokenized", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_lm_eval_scores_choices_as_its_own_hf_backend_does(
    service: Service,
    lm_eval: Callable[..., list[dict[str, Any]]],
    shared: Path,
    tmp_path: Path,
    tokenized: bool,
) -> None:
    rows = tmp_path / "choices.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in _questions(service, shared)))
    model = str(shared / "models/tiny-qwen3")
    task = {"op": "likelihoods", "task": str(Path(__file__).with_name("choices.yaml")), "rows": str(rows)}
    remote = {
        "backend": "local-completions", "base_url": f"{service.url}/v1/completions",
        "served": "tiny-qwen3", "model": model, "max_tokens": MAX_TOKENS, "batch_size": 5,
        "tokenized": tokenized,
    }  # fmt: skip
    ours, theirs = lm_eval(task | remote, task | {"model": model, "batch_size": 4})
    assert ours["metrics"] == pytest.approx(theirs["metrics"]) and ours["metrics"]
    flat, wanted = ([choice for sample in x["samples"] for choice in sample] for x in (ours, theirs))
    assert len(flat) == len(wanted) == 4 * QUESTIONS
    assert [of for of, _ in flat] == pytest.approx([of for of, _ in wanted], abs=1e-3)
    assert [greedy for _, greedy in flat] == [greedy for _, greedy in wanted]
    assert any(greedy for _, greedy in flat)


def _questions(service: Service, shared: Path) -> Iterator[dict[str, Any]]:
    """Problems with the right answer, others that are near it, and what the model itself would say."""
    lines = (shared / "data/gsm8k/test.jsonl").read_text().splitlines()[:QUESTIONS]
    with service.client() as client:
        for place, row in enumerate(map(json.loads, lines)):
            right = int(row["answer"].rpartition("####")[2].replace(",", ""))
            said = client.completions.create(
                model="tiny-qwen3", prompt=f"{row['question']}\nAnswer:", temperature=0, max_tokens=2
            )
            choices = [f" {right + (i - place % 3) * 7}" for i in range(3)]
            yield {
                "question": row["question"],
                "choices": [*choices, said.choices[0].text],
                "answer": place % 3,
            }
