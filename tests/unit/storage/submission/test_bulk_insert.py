"""A large job is inserted slice by slice: nobody waits for it, and nobody sees it before it is complete."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from actograph.contract.errors import Conflict, NotFound, ServiceUnavailable
from actograph.contract.job_specs import CaptureJobSpec
from actograph.contract.resources import JobStatus
from storage import samples
from storage.artifacts.local import LocalStore
from storage.index import visible
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.queue import view
from storage.samples import NewSample
from storage.submission import bulk_insert
from storage.tables.models import JobRow, SampleRow
from storage.upkeep import reaper
from tests.support import leasing
from tests.support.samples import age_removals

MakeSpec = Callable[..., CaptureJobSpec]


def new_samples(count: int) -> Iterator[NewSample]:
    for index in range(count):
        yield NewSample(sample_index=index, condition="", epoch=0, input={"prompt": f"{index}"}, seed=index)


def stored_samples(database: Database, job_id: str | None = None) -> list[int]:
    statement = sa.select(SampleRow.sample_index).order_by(SampleRow.position)
    if job_id is not None:
        statement = statement.where(SampleRow.job_id == job_id)
    with database.read() as session, visible.hidden_too(session):
        return list(session.scalars(statement))


def remaining(database: Database, folder: Path) -> tuple[list[str], list[int]]:
    """Jobs and samples after the removal in the background."""
    reaper.reap(database, LocalStore(folder))
    return job_ids(database), stored_samples(database)


def job_ids(database: Database) -> list[str]:
    with database.read() as session, visible.hidden_too(session):
        return list(session.scalars(sa.select(JobRow.id)))


@pytest.fixture
def insert(database: Database, capture_spec: MakeSpec) -> Callable[..., str]:
    """Inserts a capture job with these samples; returns its id."""

    def run(new: Iterator[NewSample], batch_id: str | None = None) -> str:
        spec = capture_spec(tags=["bulk"])
        return bulk_insert.insert_job(database, spec, new, total=2500, batch_id=batch_id).id

    return run


def test_small_writes_get_between_the_slices_of_a_large_job(
    database: Database,
    insert: Callable[..., str],
    submit: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A small submit and its claim before each of 40 slices: two are read ahead, those before are stored."""
    monkeypatch.setattr(bulk_insert, "SLICE", 50)
    committed: list[int] = []

    def interrupted() -> Iterator[NewSample]:
        for sample in new_samples(40 * bulk_insert.SLICE):
            if sample.sample_index % bulk_insert.SLICE == 0:
                small = submit()
                with database.write() as session:
                    assert leasing.claim(session, small, worker_id="wrk_1", count=1)
                small_samples = len(committed) + 1
                committed.append(len(stored_samples(database)) - small_samples)
            yield sample

    insert(interrupted())
    assert committed == [0, 0, *range(50, 39 * 50, 50)]


@pytest.mark.parametrize("count", [2500, 3000])
def test_a_job_appears_as_a_whole(
    database: Database, insert: Callable[..., str], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_insert, "SLICE", 1000)
    inserted = []

    def watched() -> Iterator[NewSample]:
        for sample in new_samples(count):
            if sample.sample_index == count - 1:
                inserted.append(len(stored_samples(database)))
                (job_id,) = job_ids(database)
                with database.write() as session:
                    assert jobs.find(session)[0] == []
                    assert jobs.find(session, {"tag": "bulk"})[0] == []
                    assert leasing.with_work(session) == []
                    assert view.next_jobs(session, 10) == []
                    assert sum(view.job_counts(session, list(JobStatus)).values()) == 0
                    assert not leasing.claim(session, job_id, worker_id="wrk_1", count=1)
                    for act in (jobs.get, jobs.lock, jobs.cancel, control.delete, jobs.end_if_done):
                        with pytest.raises(NotFound):
                            act(session, job_id)
            yield sample

    job_id = insert(watched())
    assert inserted == [1000]
    with database.read() as session:
        row = jobs.get(session, job_id)
        assert (row.status, row.served_at) == (JobStatus.QUEUED, 0.0)
        assert leasing.with_work(session) == [job_id]
    assert stored_samples(database) == list(range(count))


def test_a_submission_that_fails_leaves_nothing(
    database: Database, insert: Callable[..., str], tmp_path: Path
) -> None:
    def broken() -> Iterator[NewSample]:
        yield from new_samples(2500)
        raise LookupError("the rest cannot be read")

    with pytest.raises(LookupError):
        insert(broken())
    with pytest.raises(Conflict, match="was cancelled"):
        insert(new_samples(2500), "batch_" + "0" * 32)
    assert remaining(database, tmp_path) == ([], [])


def test_what_a_killed_submitter_left_is_removed(
    database: Database, insert: Callable[..., str], tmp_path: Path
) -> None:
    def killed() -> Iterator[NewSample]:
        yield from new_samples(2100)
        raise SystemExit

    with pytest.raises(SystemExit):
        insert(killed())
    assert remaining(database, tmp_path)[1], "its submitter may still be at work"
    age_removals(database)
    assert remaining(database, tmp_path) == ([], [])


def test_a_submitter_that_was_given_up_publishes_nothing(
    database: Database, insert: Callable[..., str], tmp_path: Path
) -> None:
    def slow() -> Iterator[NewSample]:
        for sample in new_samples(5000):
            if sample.sample_index == 3500:
                age_removals(database)
            yield sample

    with pytest.raises(ServiceUnavailable, match="submit it again"):
        insert(slow())
    assert remaining(database, tmp_path) == ([], [])


def test_workers_that_read_one_dataset_insert_each_sample_once(
    database: Database, capture_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_insert, "SLICE", 100)
    with database.write() as session:
        spec = capture_spec()
        job = jobs.create(session, spec)
        # a worker that died after its first slice
        samples.insert(session, job.id, list(new_samples(100)))
    read = list(new_samples(1050))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: bulk_insert.insert_dataset(database, job.id, read), range(2)))
    assert stored_samples(database, job.id) == list(range(1050))
    with database.read() as session:
        assert jobs.get(session, job.id).total == 1050
