"""Rescoring is one transaction: readers see the old scores or the new ones."""

from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import TypeAdapter

from actograph.contract.errors import Conflict
from actograph.contract.job_specs import EvaluationSpec, job_spec_adapter
from actograph.contract.resources import JobStatus, Score
from actograph.contract.tasks import ScorerList
from storage import samples
from storage.index import events
from storage.index.database import Database
from storage.jobs import jobs
from storage.results import comparisons, rescoring, summary
from storage.samples import NewSample
from storage.tables.models import SampleRow, SessionRow
from tests.support.submitting import insert

ROWS = 120
#: rows whose samples have a session
CAPTURED = (0, 1, 90, 119)
KEY = "efficiency,none"
#: the key stays, the options change
OLD: list[Any] = [{"name": "efficiency", "target_tokens": 2, "max_tokens": 6}]
NEW: list[Any] = [{"name": "efficiency", "target_tokens": 4, "max_tokens": 6}, "numeric"]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescoring, "PAGE", 50)


@pytest.fixture
def job_id(database: Database) -> str:
    """An evaluation of 120 problems that has ended."""
    spec: Any = job_spec_adapter.validate_python(
        {"kind": "evaluation", "model": "demo", "dataset": {"path": "problems.jsonl"}, "scorers": OLD}
    )
    assert isinstance(spec, EvaluationSpec)
    row = {"question": "q", "answer": "#### 5"}
    new = [NewSample(sample_index=i, condition="baseline", epoch=0, input=row, seed=0) for i in range(ROWS)]
    job_id = insert(database, spec, new)
    with database.write() as session:
        session.execute(
            sa.update(SampleRow).values(
                status="completed", completion="#### 5", generated_tokens=4, prompt_tokens=1,
                scores={KEY: {"value": 0.5, "answer": "4"}},
            )
        )  # fmt: skip
        job = jobs.lock(session, job_id)
        job.status, job.finished_at, job.completed = JobStatus.COMPLETED, 2.0, ROWS
        captured = sa.select(SampleRow).where(SampleRow.sample_index.in_(CAPTURED))
        for sample in session.scalars(captured).all():
            sample.session_id = f"ses_{sample.sample_index}"
            session.add(
                SessionRow(
                    id=sample.session_id, job_id=job.id, sample_id=sample.id, model="demo", created_at=0.0,
                    sample_index=sample.sample_index, prompt_tokens=1, generated_tokens=4, rows=1, bytes=0,
                    dtype="F32", hooks={}, correct=False,
                )
            )  # fmt: skip
    return job_id


def rescore(database: Database, job_id: str, scorers: list[Any] = NEW) -> None:
    rescoring.rescore(database, job_id, TypeAdapter(ScorerList).validate_python(scorers))


def values(scores: Mapping[str, Score]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted((key, score.value) for key, score in scores.items()))


def shown(database: Database, job_id: str) -> dict[str, Any]:
    """Every reader's view of the scores."""
    with database.snapshot() as session:
        listed, _ = samples.find(session, job_id, limit=ROWS)
        finished = comparisons.finished_samples(session, job_id, ["baseline"])["baseline"]
        return {
            "scorers": len(jobs.get(session, job_id).spec["scorers"]),
            "results": summary.of_job(session, jobs.get(session, job_id)),
            "listed": {values(samples.resource(sample).scores) for sample in listed},
            "compared": {tuple(sorted(one.scores.items())) for one in finished.values()},
        }  # fmt: skip


def correct(database: Database) -> set[bool | None]:
    with database.read() as session:
        return set(session.scalars(sa.select(SessionRow.correct)))


def test_a_rescoring_changes_everything_at_once(database: Database, job_id: str) -> None:
    old, seen = shown(database, job_id), []

    def look(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("UPDATE"):
            seen.append(shown(database, job_id))

    sa.event.listen(database.engine, "after_cursor_execute", look)
    rescore(database, job_id)
    sa.event.remove(database.engine, "after_cursor_execute", look)
    new = shown(database, job_id)
    assert seen
    assert all(one == old for one in seen)
    assert new["listed"] == new["compared"] == {((KEY, 1.0), ("exact_match,numeric", 1.0))}
    assert new["scorers"] == 2
    assert correct(database) == {True}


def test_a_kill_changes_nothing(database: Database, job_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = shown(database, job_id)

    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(events, "append", kill)
    with pytest.raises(KeyboardInterrupt):
        rescore(database, job_id)
    assert shown(database, job_id) == old
    assert correct(database) == {False}


def test_of_two_at_once_the_first_to_store_wins(
    database: Database, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = [{"name": "efficiency", "target_tokens": 2, "max_tokens": 10}]
    judge = rescoring._judge

    def slow(*given: Any) -> Any:
        monkeypatch.setattr(rescoring, "_judge", judge)
        rescore(database, job_id, other)
        return judge(*given)

    monkeypatch.setattr(rescoring, "_judge", slow)
    with pytest.raises(Conflict, match="retried or scored"):
        rescore(database, job_id)
    assert shown(database, job_id)["compared"] == {((KEY, 0.75),)}
