"""What was looked at stays true until it is written: one waits for the other, and sees what it did."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.orm import Session

from actograph.contract.errors import Conflict, NotFound
from actograph.contract.interventions import NewVector
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.operations import NewKey
from actograph.contract.roles import Role
from storage import migrate
from storage.accounts import api_keys
from storage.files import files
from storage.index import events
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.queue import claim, model_loads, workers
from storage.sessions import vectors
from storage.tables.models import FileRow, JobRow
from tests.support.samples import add_file

AtOnce = Callable[[Callable[[Session], object], Callable[[Session], object]], None]


@pytest.fixture
def load_request(database: Database) -> str:
    with database.write() as session:
        return model_loads.create(session, "demo", ModelLoadOptions()).id


def test_who_begins_to_refer_to_a_file_holds_its_deletion_off(database: Database, at_once: AtOnce) -> None:
    file_id = add_file(database)
    at_once(lambda session: files.keep(session, file_id), lambda session: files.lock(session, file_id))


@pytest.mark.parametrize("second", [files.keep, files.delete])
def test_a_file_that_is_being_deleted_is_not_there_for_who_comes_later(
    database: Database, at_once: AtOnce, second: Callable[[Session, str], object]
) -> None:
    file_id = add_file(database)

    def come(session: Session) -> None:
        with pytest.raises(NotFound):
            second(session, file_id)

    at_once(lambda session: files.delete(session, file_id), come)
    with database.read() as session:
        assert session.get(FileRow, file_id) is None


def test_two_admins_that_revoke_each_others_key_leave_one(database: Database, at_once: AtOnce) -> None:
    with database.write() as session:
        ids = [api_keys.create(session, NewKey(name=name, role=Role.ADMIN))[0].id for name in "ab"]

    def second(session: Session) -> None:
        with pytest.raises(Conflict):
            api_keys.revoke(session, ids[1])

    at_once(lambda session: api_keys.revoke(session, ids[0]), second)


@pytest.mark.parametrize("held", ["demo", "other"])
def test_one_of_two_workers_loads_a_model(
    database: Database, at_once: AtOnce, load_request: str, held: str
) -> None:
    with database.write() as session:
        for worker_id in ("one", "two"):
            workers.register(session, worker_id, hostname="h", pid=1, model="demo")
    found: list[str | None] = []

    def ask(worker_id: str, held: str = "demo") -> Callable[[Session], None]:
        def act(session: Session) -> None:
            asking = claim.Asking(worker_id=worker_id, held=claim.HeldModel(held), may_load=["demo"])
            work = claim.attempt(session, asking, lambda _key: 0)
            found.append(work.job.id if isinstance(work, claim.Claim) else None)

        return act

    at_once(ask("one"), ask("two", held))
    assert found == [load_request, None]


def test_jobs_are_held_in_one_order_whatever_they_are_asked_in(
    database: Database, submit: Callable[..., str]
) -> None:
    made = sorted(submit() for _ in range(5))
    with database.write() as session:
        assert [row.id for row in jobs.lock_all(session, [made[3], made[0], "job_none", made[4]])] == [
            made[0], made[3], made[4],
        ]  # fmt: skip


def test_entries_of_a_log_are_seen_in_the_order_of_their_ids(
    database: Database, at_once: AtOnce, submit: Callable[..., str]
) -> None:
    """Or a follower that reads from the last id on would miss one for ever."""
    job_id = submit()

    def write(event: str) -> Callable[[Session], None]:
        def act(session: Session) -> None:
            jobs.lock(session, job_id)
            events.append(session, job_id, event, {})
            events.write(session)

        return act

    at_once(write("first"), write("second"))
    with database.read() as session:
        assert [entry.event for entry in events.after(session, job_id, 0)][1:] == ["first", "second"]
    with database.write() as session, pytest.raises(RuntimeError, match="lock job"):
        events.append(session, job_id, "third", {})


def test_processes_that_start_at_once_migrate_an_empty_index_once(new_postgres: Callable[[], str]) -> None:
    databases = [Database(url := new_postgres()), Database(url)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(migrate.upgrade, databases))
    assert [migrate.current(database) for database in databases] == [migrate.head()] * 2
    for database in databases:
        database.close()


def test_a_vector_that_a_submission_needs_stays_until_it_is_stored(
    database: Database, at_once: AtOnce
) -> None:
    with database.write() as session:
        new = NewVector(name="v", hook="resid_post.0", vector=[1.0])
        vector_id = vectors.insert(session, new).id
    at_once(
        lambda session: vectors.keep(session, vector_id), lambda session: vectors.delete(session, vector_id)
    )


def test_the_sessions_of_a_job_are_looked_up_once_it_is_held(
    database: Database, at_once: AtOnce, submit: Callable[..., str]
) -> None:
    """Its last sample may be committed while its deletion is asked for."""
    job_id = submit()
    at_once(lambda session: jobs.lock(session, job_id), lambda session: control.delete(session, job_id))
    with database.read() as session:
        assert session.get(JobRow, job_id) is None
