"""`actograph eval`: what it sends, and what follows when the job has ended."""

import json
from pathlib import Path
from typing import Any

import pytest

from actograph.contract import resources
from actograph.contract.resources import ConditionComparison, JobComparison, PairedDifference
from tests.support.command_line import Run

METRICS = {"exact_match,numeric": 0.5, "exact_match_stderr,numeric": 0.25}


def test_one_command_says_it_all(service: Any, run: Run, tmp_path: Path) -> None:
    rows, shots = tmp_path / "rows.jsonl", tmp_path / "shots.jsonl"
    for path in (rows, shots):
        path.write_text('{"question": "1+1?", "answer": "#### 2"}\n')
    code, out, err = run(
        *("eval", "gsm8k", "--model", "m", "--dataset", rows, "--fewshot-dataset", shots, "--no-watch"),
        *("--scorer", "numeric", "--scorer", '{"name": "efficiency", "target_tokens": 40}'),
        *("--tools", "calculator", "--condition", "plain:tools=none"),
        *("--condition", "EP02:suffix=This is very important to my career."),
    )
    assert (code, err) == (0, "")
    spec = service.jobs[out.strip()].spec
    files = [service.uploads[spec[field]["file_id"]][0] for field in ("dataset", "fewshot_dataset")]
    assert files == ["rows.jsonl", "shots.jsonl"]
    assert [scorer["name"] for scorer in spec["scorers"]] == ["numeric", "efficiency"]
    first, second = spec["conditions"]
    assert (spec["tools"], first["name"], first["tools"]) == ("calculator", "plain", "none")
    assert (second["name"], second["suffix"]) == ("EP02", "This is very important to my career.")


def test_rows_of_a_task_that_comes_along_are_those_of_lm_eval(service: Any, run: Run) -> None:
    _, out, _ = run("eval", "gsm8k_cot_zeroshot", "--model", "m", "--num-fewshot", 3, "--no-watch")
    spec = service.jobs[out.strip()].spec
    assert spec["dataset"] == {"hub": "openai/gsm8k", "config": "main", "split": "test"}
    assert spec["fewshot_dataset"] == {"hub": "openai/gsm8k", "config": "main", "split": "train"}
    _, out, _ = run("eval", "gsm8k", "--model", "m", "--dataset", "path:a.jsonl", "--no-watch")
    spec = service.jobs[out.strip()].spec
    assert (spec["dataset"]["path"], spec["fewshot_dataset"]) == ("a.jsonl", None)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--scorer", '{"name": "numeric", "target_tokens": 3}'), "scorers.0: "),
        (("--max-turns", "3"), "max_turns needs tools: calculator"),
        (("--tool-format", "annotations"), "tool_format needs tools: calculator"),
        (("--capture", "embed@first"), "capture: layers 'first' are not valid"),
        (("--condition", "a b"), "conditions.0.name: "),
    ],
)
def test_mistakes_are_found_before_anything_is_sent(
    service: Any, run: Run, flags: tuple[str, ...], reason: str
) -> None:
    code, out, err = run("eval", "gsm8k", "--model", "m", "--no-watch", *flags)
    assert (code, out) == (1, "")
    assert reason in err
    assert service.seen == []


def test_a_comparison_follows_the_results(service: Any, run: Run) -> None:
    job = service.add_job(1, spec={"kind": "evaluation", "conditions": [{"name": "a"}, {"name": "b"}]})
    service.add_events(job.id, ("job.completed", {"completed": 4, "failed": 0, "total": 4}))
    one = resources.ConditionResults(alias="gsm8k", metrics=METRICS, samples=2, failed=0, truncated=0)
    service.results[job.id] = resources.JobResults(
        job_id=job.id, status=job.status, task="gsm8k", progress=job.progress, conditions={"a": one, "b": one}
    )
    nothing = PairedDifference(pairs=0)
    service.comparison = JobComparison(
        job_id=job.id,
        status=job.status,
        baseline="a",
        level=0.95,
        resamples=10,
        conditions={
            "b": ConditionComparison(unpaired=0, metrics={}, prompt_tokens=nothing, generated_tokens=nothing)
        },
    )
    code, out, err = run("jobs", "watch", job.id)
    assert (code, err.splitlines()[-1]) == (0, f"job {job.id} completed")
    assert out.index("gsm8k   b") < out.index("baseline: a") < out.index("generated_tokens")
    code, out, _ = run("jobs", "watch", job.id, "--format", "json")
    assert [json.loads(line)["object"] for line in out.splitlines()] == ["job.results", "job.comparison"]
