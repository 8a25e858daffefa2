"""Whole greedy evaluations, by a drain with capture and by lm-eval's hf backend, sample by sample."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from actograph.contract.resources import JobStatus
from actograph.demo import MODEL_DIR, PROBLEMS
from worker.engine.engine import Engine
from worker.engine.model.load import load_model

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

Ask = Callable[..., list[dict[str, Any]]]
FILTERS = ("strict-match", "flexible-extract")


@dataclass(frozen=True)
class Case:
    """`model` is a folder under shared/models, or the demo's, with the problems that it was trained on."""

    model: str
    chat: bool
    limit: int = 200
    max_tokens: int = 64
    num_fewshot: int = 0


CASES = [
    Case("tiny-qwen3", chat=True),
    Case("tiny-qwen3", chat=False, limit=40, max_tokens=32, num_fewshot=5),
    Case("stories260k", chat=False, max_tokens=48),
    # so few tokens that some answers are cut: right and wrong ones, and filters that disagree
    Case("demo", chat=True, limit=150, max_tokens=30),
]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.model}-{case.num_fewshot}shot-{'chat' if case.chat else 'text'}"
)
def test_every_sample_has_lm_evals_verdict(
    bench: "Bench", lm_eval: Ask, shared: Path, tmp_path: Path, case: Case
) -> None:
    is_demo = case.model == "demo"
    folder = MODEL_DIR if is_demo else shared / "models" / case.model
    problems = PROBLEMS if is_demo else shared / "data/gsm8k/test.jsonl"
    rows = [json.loads(line) for line in problems.read_text().splitlines()]
    data = tmp_path / "rows"
    data.mkdir()
    train = shared / "data/gsm8k/train.jsonl"
    (data / "test.jsonl").write_text(problems.read_text())
    (data / "train.jsonl").write_text(train.read_text())
    request = {
        "op": "evaluate", "model": str(folder), "data": str(data), "task": "gsm8k", "limit": case.limit,
        "num_fewshot": case.num_fewshot, "max_tokens": case.max_tokens, "chat": case.chat,
        "batch_size": 16, "dtype": "float32", "device": "cpu", "threads": 2,
    }  # fmt: skip
    (theirs,) = lm_eval(request)
    if case.model != "tiny-qwen3":
        bench.engine = Engine(load_model(str(folder), name="tiny-qwen3", device="cpu"))
    roots = (*bench.settings.data_roots, str(data))
    bench.settings = bench.settings.model_copy(update={"data_roots": roots, "slots": 16})
    job_id = bench.submit(
        rows=rows[: case.limit],
        num_fewshot=case.num_fewshot,
        fewshot_dataset={"path": str(data / "train.jsonl")},
        apply_chat_template=case.chat,
        sampling={"max_tokens": case.max_tokens},
        scorers=list(FILTERS),
        capture={"points": ["resid_post"], "layers": "all"},
    )
    while bench.status(job_id) in (JobStatus.QUEUED, JobStatus.IN_PROGRESS):
        bench.drain().look()
    samples = bench.samples(job_id)
    assert len(samples) == len(theirs["samples"]) == case.limit
    # lm-eval cuts a prompt that is too long from the left; here such a sample has failed
    fitting = [pair for pair in zip(samples, theirs["samples"], strict=True) if pair[0].error is None]
    assert {s.error.type for s in samples if s.error} <= {"context_length_exceeded"}
    assert len(fitting) == case.limit if not case.num_fewshot else len(fitting) >= 10
    for sample, other in fitting:
        assert sample.session_id is not None
        assert sample.prompt == other["prompt"]
        assert sample.completion == other["completion"], sample.sample_index
        for name in FILTERS:
            score = sample.scores[f"exact_match,{name}"]
            found = [score.answer if score.answer is not None else "[invalid]", score.value]
            assert found == other["scores"][name], (sample.sample_index, name)
    if is_demo:
        verdicts = {
            tuple(sample.scores[f"exact_match,{name}"].value for name in FILTERS) for sample in samples
        }
        assert {(1.0, 1.0), (0.0, 0.0)} <= verdicts
