"""Rescoring writes in slices: others write meanwhile, and readers see the old scores or the new ones."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from actograph.contract.errors import Conflict
from actograph.contract.resources import JobStatus, Score
from actograph.contract.scorers import ScorerList
from actograph.contract.specs import EvaluationSpec, job_spec_adapter
from actograph.settings import Settings
from storage import samples
from storage.artifacts.local import LocalStore
from storage.index.database import Database
from storage.jobs import jobs
from storage.results import comparisons, rescoring, summary
from storage.samples import NewSample
from storage.tables.models import JobRow, SampleRow, SessionRow
from storage.upkeep.housekeeping import Housekeeping

ROWS = 220
#: of 50 rows each
SLICES = 5
#: rows whose samples have a session
CAPTURED = (0, 1, 90, 219)
KEY = "efficiency,none"
#: the key stays, the options change
OLD: list[Any] = [{"name": "efficiency", "target_tokens": 2, "max_tokens": 6}]
NEW: list[Any] = [{"name": "efficiency", "target_tokens": 4, "max_tokens": 6}, "numeric"]
#: one transaction says that scores are staged, one that they are in force, the last one that they are stored
BEGIN, SWITCH, LAST = 1, SLICES + 2, 2 * SLICES + 3


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescoring, "PAGE", 50)


@pytest.fixture
def job_id(database: Database) -> str:
    """An evaluation of 220 problems that has ended."""
    spec: Any = job_spec_adapter.validate_python(
        {"kind": "evaluation", "model": "demo", "dataset": {"path": "problems.jsonl"}, "scorers": OLD}
    )
    assert isinstance(spec, EvaluationSpec)
    row = {"question": "q", "answer": "#### 5"}
    new = [NewSample(sample_index=i, condition="baseline", epoch=0, input=row, seed=0) for i in range(ROWS)]
    with database.write() as session:
        job = jobs.create(session, kind="evaluation", model="demo", spec=spec, hooks=None, total=ROWS)
        samples.insert(session, job.id, new)
        session.flush()
        session.execute(
            sa.update(SampleRow).values(
                status="completed", completion="#### 5", generated_tokens=4, prompt_tokens=1,
                stored_scores={KEY: {"value": 0.5, "answer": "4"}},
            )
        )  # fmt: skip
        job = jobs.lock(session, job.id)
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
        return job.id


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


def is_settled(database: Database) -> bool:
    with database.read() as session:
        staged = session.scalar(sa.select(sa.func.count(SampleRow.staged_scores)))
        job = session.execute(sa.select(JobRow.scoring, JobRow.staged_scoring)).one()
        return staged == 0 and tuple(job) == (None, None)


@pytest.fixture
def between(database: Database, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has something done before every write transaction but its own; it is given their number."""

    def set_up(act: Callable[[int], None]) -> None:
        original, count, is_acting = database.write, 0, False

        @contextmanager
        def write() -> Iterator[Session]:
            nonlocal count, is_acting
            if not is_acting:
                count, is_acting = count + 1, True
                try:
                    act(count)
                finally:
                    is_acting = False
            with original() as session:
                yield session

        monkeypatch.setattr(database, "write", write)

    return set_up


@pytest.mark.integration
def test_others_read_and_write_between_slices(
    database: Database, job_id: str, between: Callable[..., None]
) -> None:
    old, seen = shown(database, job_id), []

    def look(_: int) -> None:
        with database.write() as session:  # does not come to an end while another transaction is open
            jobs.get(session, job_id).priority += 1
        seen.append(shown(database, job_id))

    between(look)
    rescore(database, job_id)
    new = shown(database, job_id)
    assert new["compared"] == {((KEY, 1.0), ("exact_match,numeric", 1.0))}
    assert len(seen) == LAST
    assert seen == [old] * SWITCH + [new] * (LAST - SWITCH)


def test_no_transaction_writes_more_than_one_slice(database: Database, job_id: str) -> None:
    written = [0]

    def begin(_: sa.Connection) -> None:
        written.append(0)

    def count(_: Any, cursor: Any, statement: str, parameters: Any, __: Any, executemany: bool) -> None:
        if statement.startswith("UPDATE samples"):
            written[-1] += len(parameters) if executemany else cursor.rowcount

    sa.event.listen(database.engine, "begin", begin)
    sa.event.listen(database.engine, "after_cursor_execute", count)
    rescore(database, job_id)
    assert max(written) == rescoring.PAGE
    assert sum(written) == 2 * ROWS
    assert correct(database) == {True}
    assert is_settled(database)


@pytest.mark.covering(4)
@pytest.mark.parametrize("at", [BEGIN, BEGIN + 1, SWITCH - 2, SWITCH, SWITCH + 1, SWITCH + 3, LAST])
def test_a_kill_changes_everything_or_nothing_and_a_repeat_completes(
    database: Database, job_id: str, between: Callable[..., None], at: int
) -> None:
    old = shown(database, job_id)

    def kill(count: int) -> None:
        if count == at:
            raise Killed

    between(kill)
    with pytest.raises(Killed):
        rescore(database, job_id)
    after = shown(database, job_id)
    rescore(database, job_id)
    new = shown(database, job_id)
    assert new["listed"] == {((KEY, 1.0), ("exact_match,numeric", 1.0))}
    assert after == (old if at <= SWITCH else new)
    assert correct(database) == {True}
    assert is_settled(database)


def test_what_a_kill_left_is_completed_in_the_background(
    database: Database, job_id: str, between: Callable[..., None], tmp_path: Path
) -> None:
    def kill(count: int) -> None:
        if count == SWITCH + 2:
            raise Killed

    between(kill)
    with pytest.raises(Killed):
        rescore(database, job_id)
    assert correct(database) == {False, True}
    with database.read() as session:
        assert rescoring.unsettled(session) == [job_id]
    new = shown(database, job_id)
    housekeeping = Housekeeping(Settings(home=tmp_path), database, LocalStore(tmp_path / "store"), Event())
    housekeeping.tick()
    housekeeping.join()
    assert shown(database, job_id) == new
    assert correct(database) == {True}
    assert is_settled(database)


def test_of_two_at_once_the_later_one_counts(
    database: Database, job_id: str, between: Callable[..., None]
) -> None:
    def other(count: int) -> None:
        if count == 3:
            rescore(database, job_id, [{"name": "efficiency", "target_tokens": 2, "max_tokens": 10}])

    between(other)
    with pytest.raises(Conflict, match="retried or scored"):
        rescore(database, job_id)
    assert shown(database, job_id)["compared"] == {((KEY, 0.75),)}
    assert is_settled(database)
