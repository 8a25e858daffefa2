"""Results by kept sums are those of every sample, whatever happens to the job."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from actograph.contract.errors import ActographError
from actograph.contract.resources import JobResults, Score
from actograph.contract.resources.tool_use import ToolUse
from actograph.contract.specs import EvaluationSpec, job_spec_adapter
from storage import samples
from storage.index.database import Database
from storage.jobs import job_control, jobs
from storage.results import job_results, job_sums
from storage.samples import NewSample, SampleResult
from storage.tables.models import JobRow, JobSumsRow, SampleRow

KEYS = ("exact_match,strict-match", "includes,none")
ROWS = 40


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_results, "PAGE", 7)
    monkeypatch.setattr(job_results, "KEEP_EVERY", 10)


@pytest.fixture(params=[1, 3], ids=["one epoch", "three epochs"])
def job_id(database: Database, request: pytest.FixtureRequest) -> str:
    """A queued evaluation of eighty samples under two conditions, or as many as whole epochs make."""
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
        for index in range(ROWS // spec.epochs)
        for name in ("a", "b")
        for epoch in range(spec.epochs)
    ]
    with database.write() as session:
        row = jobs.create(session, kind="evaluation", model="demo", spec=spec, hooks=None, total=len(new))
        samples.insert(session, row.id, new)
        return row.id


def drain(database: Database, job_id: str, count: int, draw: random.Random, fails: float = 0.1) -> None:
    """Run `count` samples, not all in the order in which they were claimed."""
    with database.write() as session:
        leases = samples.claim(session, job_id, worker_id="w", count=count, lease_seconds=60)
        draw.shuffle(leases)
        failed = 0
        for lease in leases:
            if draw.random() < fails:
                failed += 1
                samples.fail(session, lease, ActographError("no"))
                continue
            values = (float(draw.random() < 0.4), draw.choice([0.1, 1 / 3, 1.0]))
            uses = {"turns": 2, "calls": 1, "errors": 0, "malformed": 0, "ended": "answer"}
            samples.complete(
                session,
                lease,
                SampleResult(
                    prompt="p",
                    completion="c",
                    finish_reason=draw.choice(["stop", "length"]),
                    prompt_tokens=3,
                    generated_tokens=2,
                    scores={
                        key: Score(value=value, answer=draw.choice(["1", "2", None]))
                        for key, value in zip(KEYS, values, strict=True)
                    },
                    session_id=None,
                    tool_use=ToolUse.model_validate(uses) if draw.random() < 0.5 else None,
                ),
            )
        jobs.count_finished(session, job_id, completed=len(leases) - failed, failed=failed)
        jobs.end_if_done(session, job_id)


def whole(database: Database, job_id: str) -> JobResults:
    with database.read() as session:
        return job_results.of_job(session, jobs.get(session, job_id))


def kept_position(database: Database, job_id: str) -> int | None:
    with database.read() as session:
        return session.scalar(sa.select(JobSumsRow.position).where(JobSumsRow.job_id == job_id))


def test_results_while_a_job_runs_and_after(database: Database, job_id: str) -> None:
    draw, positions = random.Random(4), []
    for _ in range(200):
        drain(database, job_id, draw.randint(1, 9), draw)
        found = job_results.current(database, job_id)
        assert found == whole(database, job_id)
        positions.append(kept_position(database, job_id) or 0)
        if found.progress.completed + found.progress.failed == found.progress.total:
            break
    assert found.status == "completed"
    assert positions == sorted(positions)
    assert len(set(positions)) > 3
    assert found.conditions["a"].samples > 20


def test_only_samples_after_the_kept_sums_are_read(
    database: Database, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, read = random.Random(5), []
    ended = job_sums.ended

    def counted(*args: Any, **options: Any) -> Any:
        found = ended(*args, **options)
        read.append(len(found))
        return found

    drain(database, job_id, 60, draw)
    job_results.current(database, job_id)
    monkeypatch.setattr(job_sums, "ended", counted)
    drain(database, job_id, 4, draw)
    assert job_results.current(database, job_id) == whole(database, job_id)
    by_sums, by_all = sum(read[:-1]), read[-1]
    assert (by_sums < 15, by_all) == (True, 64)


def test_results_after_a_retry(database: Database, job_id: str) -> None:
    draw = random.Random(6)
    drain(database, job_id, 1000, draw, fails=0.3)
    before = job_results.current(database, job_id)
    assert before.conditions["a"].failed > 0
    with database.write() as session:
        job_control.retry(session, job_id)
    assert job_results.current(database, job_id) == whole(database, job_id)
    drain(database, job_id, 1000, draw, fails=0.0)
    after = job_results.current(database, job_id)
    assert after == whole(database, job_id)
    assert after.conditions["a"].failed == 0
    assert job_results.current(database, job_id) == after


def test_a_retry_by_a_process_that_knows_of_no_sums(database: Database, job_id: str) -> None:
    """All samples that it opened have ended again before the next read."""
    draw = random.Random(7)
    drain(database, job_id, 1000, draw, fails=0.3)
    job_results.current(database, job_id)
    assert kept_position(database, job_id)
    with database.write() as session:
        job_control.retry(session, job_id)
    drain(database, job_id, 1000, draw, fails=0.0)
    assert job_results.current(database, job_id) == whole(database, job_id)


def test_results_after_new_scorers(database: Database, job_id: str) -> None:
    drain(database, job_id, 1000, random.Random(8))
    before = job_results.current(database, job_id)
    with database.write() as session:
        row = jobs.lock(session, job_id)
        row.spec = {**row.spec, "scorers": [{"type": "exact_match", "name": "strict-match"}]}
        scores = {KEYS[0]: {"value": 1.0, "answer": "1"}}
        completed = SampleRow.status == "completed"
        session.execute(
            sa.update(SampleRow).where(SampleRow.job_id == job_id, completed).values(stored_scores=scores)
        )
    after = job_results.current(database, job_id)
    assert after == whole(database, job_id)
    assert after != before


def test_a_deleted_job_keeps_no_sums(database: Database, job_id: str) -> None:
    drain(database, job_id, 1000, random.Random(9))
    job_results.current(database, job_id)
    with database.write() as session:
        session.execute(sa.delete(JobRow).where(JobRow.id == job_id))
        job_sums.keep(session, job_id, job_sums.JobSums(position=3))
    assert kept_position(database, job_id) is None


def test_a_job_without_scores(database: Database, submit: Callable[..., str]) -> None:
    job_id = submit(30)
    for _ in range(3):
        with database.write() as session:
            for lease in samples.claim(session, job_id, worker_id="w", count=10, lease_seconds=60):
                samples.fail(session, lease, ActographError("no"))
            jobs.count_finished(session, job_id, completed=0, failed=10)
            jobs.end_if_done(session, job_id)
        assert job_results.current(database, job_id) == whole(database, job_id)
