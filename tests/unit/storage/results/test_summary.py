"""Results of jobs that run, were retried or have no scores."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from actograph.contract.errors import ActographError
from actograph.contract.job_specs import EvaluationSpec, job_spec_adapter
from actograph.contract.resources import JobResults, Score, ToolUse
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.results import summary
from storage.samples import NewSample
from tests.support import leasing
from tests.support.samples import result
from tests.support.submitting import insert

KEYS = ("exact_match,strict-match", "includes,none")
ROWS = 20


@pytest.fixture(params=[1, 3], ids=["one epoch", "three epochs"])
def job_id(database: Database, request: pytest.FixtureRequest) -> str:
    """A queued evaluation of twenty problems under two conditions."""
    spec: Any = job_spec_adapter.validate_python(
        {
            "kind": "evaluation",
            "model": "demo",
            "dataset": {"path": "problems.jsonl"},
            "conditions": [
                {"name": "a"},
                {"name": "b", "suffix": "Think."},
                {"name": "empty", "prefix": "-"},
            ],
            "epochs": request.param,
            "sampling": {"temperature": 1.0, "max_tokens": 8},
            "max_consecutive_failures": 0,
        }
    )
    assert isinstance(spec, EvaluationSpec)
    new = [
        NewSample(sample_index=index, condition=name, epoch=epoch, input={}, seed=0)
        for index in range(ROWS)
        for name in ("a", "b")
        for epoch in range(spec.epochs)
    ]
    return insert(database, spec, new)


def drain(database: Database, job_id: str, count: int, draw: random.Random, fails: float = 0.1) -> None:
    """Run `count` samples, not all in the order in which they were claimed."""
    with database.write() as session:
        leases = leasing.claim(session, job_id, worker_id="w", count=count)
        draw.shuffle(leases)
        failed = 0
        for lease in leases:
            if draw.random() < fails:
                failed += 1
                leasing.fail(session, lease, ActographError("no"))
                continue
            values = (float(draw.random() < 0.4), draw.choice([0.1, 1 / 3, 1.0]))
            uses = {"turns": 2, "calls": 1, "errors": 0, "malformed": 0, "ended": "answer"}
            leasing.complete(
                session,
                lease,
                result(
                    finish_reason=draw.choice(["stop", "length"]),
                    scores={
                        key: Score(value=value, answer=draw.choice(["1", "2", None]))
                        for key, value in zip(KEYS, values, strict=True)
                    },
                    tool_use=ToolUse.model_validate(uses) if draw.random() < 0.5 else None,
                ),
            )


def results(database: Database, job_id: str) -> JobResults:
    with database.snapshot() as session:
        return summary.of_job(session, jobs.get(session, job_id))


def test_a_page_may_end_within_a_problem(
    database: Database, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(4)
    for _ in range(3):
        drain(database, job_id, 31, draw)
        found = results(database, job_id)
        with monkeypatch.context() as context:
            context.setattr(summary, "PAGE", 7)
            assert results(database, job_id) == found
    assert found.conditions["a"].samples > 10
    assert found.conditions["empty"].metrics == {}


def test_results_after_a_retry(database: Database, job_id: str) -> None:
    draw = random.Random(6)
    drain(database, job_id, 1000, draw, fails=0.3)
    assert results(database, job_id).conditions["a"].failed > 0
    with database.write() as session:
        control.retry(session, job_id)
    assert results(database, job_id).conditions["a"].failed == 0
    drain(database, job_id, 1000, draw, fails=0.0)
    after = results(database, job_id)
    assert after.conditions["a"].failed == 0
    assert after.progress.completed == after.progress.total


def test_a_job_without_scores(database: Database, submit: Callable[..., str]) -> None:
    job_id = submit(10)
    with database.write() as session:
        for lease in leasing.claim(session, job_id, worker_id="w", count=10):
            leasing.fail(session, lease, ActographError("no"))
    assert [(one.failed, one.metrics) for one in results(database, job_id).conditions.values()] == [(10, {})]


def test_problems_that_metrics_of_epochs_leave_out_are_counted(database: Database) -> None:
    spec: Any = job_spec_adapter.validate_python(
        {
            "kind": "evaluation", "model": "demo", "dataset": {"path": "problems.jsonl"}, "epochs": 2,
            "sampling": {"temperature": 1.0, "max_tokens": 8}, "max_consecutive_failures": 0,
        }
    )  # fmt: skip
    new = [
        NewSample(sample_index=index, condition="baseline", epoch=epoch, input={}, seed=0)
        for index in range(3)
        for epoch in range(2)
    ]
    job_id = insert(database, spec, new)
    score = {KEYS[0]: Score(value=1.0, answer="1")}
    with database.write() as session:
        for lease in leasing.claim(session, job_id, worker_id="w", count=6):
            # the second problem has one answer, the third none
            if lease.sample_index + lease.epoch >= 2:
                leasing.fail(session, lease, ActographError("broken"))
            else:
                leasing.complete(session, lease, result(scores=score), None)
    with database.snapshot() as session:
        found = summary.of_job(session, jobs.get(session, job_id)).conditions["baseline"]
    filter_name = KEYS[0].partition(",")[2]
    counts = {"pass@1": 1, "pass@2": 2, "maj@2": 2}
    assert found.left_out == {f"{name},{filter_name}": count for name, count in counts.items()}
    progress = {"total": 6, "completed": 3, "failed": 3}
    results = {"job_id": job_id, "status": "completed", "conditions": {"main": found}, "progress": progress}
    shown = str(JobResults.model_validate(results))
    assert "main: pass@2,strict-match leaves out 2 problem(s)" in shown
