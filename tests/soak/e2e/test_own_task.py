"""A task of one's own, from a YAML file and a JSONL file through the whole service.

tiny-qwen3 was trained on bare questions, without the frame that GSM8K's prompt puts around them.
"""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

from actograph.cli.main import main
from actograph.client import Client
from actograph.contract.resources import JobComparison, JobResults, Sample

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


@pytest.fixture(scope="module")
def task_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The task with 100 problems beside it."""
    folder = tmp_path_factory.mktemp("task")
    (folder / "additions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems(100)))
    (folder / "additions.yaml").write_text(TASK)
    return folder / "additions.yaml"


@pytest.fixture(scope="module")
def service(module_up: Callable[..., Any], shared: Path, task_file: Path) -> Iterator[Any]:
    started = module_up("--data-root", str(task_file.parent), model=str(shared / "models" / "tiny-qwen3"))
    started.await_ready()
    yield started
    assert started.stop() == 0


def test_one_command_evaluates_conditions_with_capture_and_compares_them(
    service: Any,
    task_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With and without tools, and with thoughts, the model solves its problems; what is said of the

    differences is what scipy and statsmodels find in the listed samples.
    """
    monkeypatch.setenv("ACTOGRAPH_URL", service.url)
    run = ["eval", str(task_file), "--max-tokens", "64", "--capture", "attn_in,mlp_in@0,1"]
    variants = ["plain", "calculator:tools=calculator", "hot:temperature=1.5"]
    flags = [word for variant in variants for word in ("--condition", variant)]
    assert main([*run, *flags, "--max-turns", "4", "--format", "json"]) == 0
    job, results_line, comparison_line = capsys.readouterr().out.splitlines()
    results = JobResults.model_validate_json(results_line)
    comparison = JobComparison.model_validate_json(comparison_line)
    assert main([*run, "--thinking", "--limit", "60", "--tag", "thinking"]) == 0
    with Client(service.url) as client:
        samples = list(client.jobs.get(json.loads(job)["id"]).samples())
        (thinking,) = client.jobs.list(tag="thinking")
        thoughts = list(client.jobs.get(thinking.id).samples())
        found = client.jobs.get(thinking.id).results().conditions["baseline"].metrics["exact_match,numeric"]
    assert len(samples) == 300
    assert all(sample.session_id for sample in (*samples, *thoughts))
    # the template closes an empty thought where there shall be none
    assert str(samples[0].prompt).endswith("</think>\n\n")
    assert all(str(sample.prompt).endswith("assistant\n") for sample in thoughts)
    assert found is not None and found >= 0.95
    for name in ("plain", "calculator"):
        accuracy = results.conditions[name].metrics["exact_match,numeric"]
        assert accuracy is not None and accuracy >= 0.95
    tools = results.conditions["calculator"].tool_use
    assert tools is not None and (tools.calling, tools.errors) == (100, 0)
    check_comparison(comparison, samples)


def check_comparison(comparison: JobComparison, samples: list[Sample]) -> None:
    """Against scipy and statsmodels, on the same samples."""

    def values(condition: str, key: str) -> Any:
        own = [sample for sample in samples if sample.condition == condition]
        assert [sample.index for sample in own] == list(range(100))
        if key in comparison.conditions[name].metrics:
            return np.array([sample.scores[key].value for sample in own])
        return np.array([getattr(sample, key) for sample in own], dtype=float)

    assert (comparison.baseline, list(comparison.conditions)) == ("plain", ["calculator", "hot"])
    assert comparison.conditions["hot"].metrics["exact_match,numeric"].only_baseline
    for name, condition in comparison.conditions.items():
        for key in ("exact_match,numeric", "efficiency,none", "generated_tokens"):
            ours = condition.metrics.get(key, condition.generated_tokens)
            first, second = values("plain", key), values(name, key)
            assert ours.pairs == 100
            assert ours.difference == pytest.approx((second - first).mean())
            if first.tolist() == second.tolist():
                assert (ours.low, ours.high) == (0.0, 0.0)
                continue
            theirs = stats.bootstrap(
                (second - first,),
                np.mean,
                n_resamples=9999,
                method="percentile",
                rng=np.random.default_rng(5),
            ).confidence_interval
            width = theirs.high - theirs.low
            assert ours.low == pytest.approx(theirs.low, abs=0.15 * width)
            assert ours.high == pytest.approx(theirs.high, abs=0.15 * width)
        first, second = values("plain", "exact_match,numeric"), values(name, "exact_match,numeric")
        table = np.histogram2d(first, second, bins=[[-0.5, 0.5, 1.5]] * 2)[0]
        judged = condition.metrics["exact_match,numeric"]
        assert (judged.only_condition, judged.only_baseline) == (table[0, 1], table[1, 0])
        assert judged.mcnemar_p == pytest.approx(mcnemar(table, exact=True).pvalue)


def test_the_bare_question_is_answered(
    service: Any,
    task_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = problems(100)
    monkeypatch.setenv("ACTOGRAPH_URL", service.url)
    assert main(["eval", str(task_file), "--max-tokens", "64", "--tag", "own"]) == 0
    with Client(service.url) as client:
        (job,) = client.jobs.list(tag="own")
        results = client.jobs.get(job.id).results()
        assert results.task == "additions"
        baseline = results.conditions["baseline"]
        accuracy = baseline.metrics["exact_match,numeric"]
        assert accuracy is not None and accuracy >= 0.95
        assert baseline.metrics["exact_match,strict-match"] == accuracy
        assert baseline.unparsed["exact_match,numeric"] == 0
        first = next(client.jobs.get(job.id).samples())
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
        assert all("total? Please!" in str(sample.prompt) for sample in client.jobs.get(again.id).samples())
