"""Deleted things disappear at once, count until their files are gone, and no crash loses sight of a file."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from actograph.contract.errors import Conflict, NotFound, ServiceUnavailable
from actograph.contract.resources import JobStatus, SampleStatus, SessionFile
from actograph.contract.specs import SessionUpdate
from actograph.settings import Settings
from storage import samples
from storage.accounts import quotas
from storage.artifacts.local import LocalStore
from storage.files import files
from storage.index import deletions
from storage.index.database import Database
from storage.index.ids import new_file_id, new_session_id
from storage.jobs import job_deletion, jobs
from storage.sessions import changes, sessions
from storage.sessions.filter import SessionFilter
from storage.sessions.writer import session_prefix
from storage.tables.models import DeletionRow, EventRow, FileRow, JobRow, SampleRow, SessionRow
from storage.upkeep import deletion_drain
from storage.upkeep.deletion_drain import drain_deletions
from tests.support import leasing
from tests.support.samples import result, session_of

Submit = Callable[..., str]
SIZE = 64


class FlakyStore(LocalStore):
    """Refuses the next `outages` batches, as S3 does with a 503; `kills` processes end at one."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.outages = self.kills = 0
        self.batches: list[int] = []

    def delete_many(self, doomed: Mapping[str, Sequence[str] | None]) -> dict[str, str]:
        self.batches.append(len(doomed))
        self.kills -= 1
        if self.kills >= 0 and self.kills % 2:
            raise Killed
        if self.outages:
            self.outages -= 1
            return dict.fromkeys(doomed, "503 Slow Down")
        failures = super().delete_many(doomed)
        if self.kills >= 0:
            raise Killed
        return failures


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def store(tmp_path: Path) -> FlakyStore:
    return FlakyStore(tmp_path / "artifacts")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of two, so that a job of seven is a large one."""
    for name in (
        "jobs.job_deletion.SLICE",
        "upkeep.deletion_drain.SLICE",
        "upkeep.deletion_drain.BATCH",
        "sessions.changes.BATCH",
    ):
        monkeypatch.setattr(f"storage.{name}", 2)


@pytest.fixture
def stored(database: Database, store: FlakyStore, submit: Submit) -> Callable[..., tuple[str, list[str]]]:
    """Makes an ended job with `count` stored sessions: its id and theirs."""

    def make(count: int = 1) -> tuple[str, list[str]]:
        job_id, made = submit(count), []
        for _ in range(count):
            with database.write() as session:
                jobs.start(session, job_id)
                (lease,) = leasing.claim(session, job_id, worker_id="w", count=1)
            session_id = new_session_id()
            with store.stage(session_prefix(session_id)) as stage:
                for name in ("manifest.json", "activations.safetensors"):
                    with stage.create(name) as file:
                        file.write(bytes(SIZE // 2))
                stage.commit()
            names = ("manifest.json", "activations.safetensors")
            files = [SessionFile(name=name, bytes=SIZE // 2, sha256="0" * 64) for name in names]
            with database.write() as session:
                made_session = session_of(lease, id=session_id, files=files, tags=["t"])
                leasing.complete(session, lease, result(session_id=session_id), made_session)
            made.append(session_id)
        return job_id, made

    return make


def add_file(database: Database, store: LocalStore, expires_after: float | None = None) -> str:
    file_id = new_file_id()
    store.put_stream(f"files/{file_id}", [bytes(SIZE)])
    with database.write() as session:
        files.insert(
            session, file_id=file_id, filename="a", purpose="dataset", size=SIZE, sha256="0" * 64,
            expires_after=expires_after,
        )  # fmt: skip
    return file_id


def stored_ids(store: LocalStore) -> set[str]:
    return {path.name for parent in ("sessions", "files") for path in (store.root / parent).iterdir()}


def listed_ids(database: Database) -> set[str]:
    """Ids that a reader sees."""
    with database.read() as session:
        return {*sessions.ids(session, SessionFilter()), *session.scalars(sa.select(FileRow.id))}


def pending_ids(database: Database) -> set[str]:
    """Sessions and files that are to be removed, also as part of a job that is."""
    with database.read() as session:
        entries = session.execute(sa.select(DeletionRow.id, DeletionRow.listed)).all()
        of_jobs = sa.select(SessionRow.id).where(
            SessionRow.job_id.in_([id for id, listed in entries if listed])
        )
        return {one for one, _ in entries if not one.startswith("job_")} | set(session.scalars(of_jobs))


def used(database: Database) -> int:
    with database.read() as session:
        return sum(one.total_bytes for one in quotas.usage(session).values())


def test_a_deleted_job_disappears_at_once_and_counts_until_its_files_are_gone(
    database: Database, store: FlakyStore, stored: Callable[..., tuple[str, list[str]]]
) -> None:
    job_id, made = stored(2)
    _, kept = stored(1)
    with database.write() as session:
        job_deletion.delete(session, job_id)
    assert listed_ids(database) == set(kept)
    assert (stored_ids(store), used(database)) == ({*made, *kept}, 3 * SIZE)
    with database.read() as session:
        usage = quotas.shown(session, Settings())
    assert (usage.sessions, usage.session_bytes, usage.deleting, usage.deleting_bytes) == (
        1,
        SIZE,
        2,
        2 * SIZE,
    )
    # the process was killed before the files went; another one finds them
    drained = drain_deletions(database, store)
    assert (drained.count, drained.bytes) == (2, 2 * SIZE)
    assert (stored_ids(store), used(database)) == (set(kept), SIZE)
    with database.read() as session:
        assert not deletions.is_any_due(session)


@pytest.mark.parametrize("what", ["session", "sessions", "expired sessions", "file", "expired file"])
def test_whatever_is_deleted_leaves_its_files_to_the_background(
    database: Database, store: FlakyStore, stored: Callable[..., tuple[str, list[str]]], what: str
) -> None:
    _, (session_id,) = stored(1)
    file_id = add_file(database, store, expires_after=-1 if what == "expired file" else None)
    doomed = file_id if "file" in what else session_id
    with database.write() as session:
        if what == "session":
            sessions.delete(session, session_id)
        elif what == "file":
            files.delete(session, file_id)
        elif what == "expired sessions":
            changes.update(session, [session_id], SessionUpdate(expires_at=1))
    if what == "sessions":
        changes.delete_matching(database, SessionFilter(tag="t"))
    elif what == "expired sessions":
        changes.expire(database)
    elif what == "expired file":
        files.expire(database)
    both = {session_id, file_id}
    assert (listed_ids(database), pending_ids(database)) == (both - {doomed}, {doomed})
    assert stored_ids(store) == both
    assert used(database) == 2 * SIZE
    drain_deletions(database, store)
    assert stored_ids(store) == both - {doomed}
    assert used(database) == SIZE


def test_a_store_that_is_away_is_asked_again_later_and_later(
    database: Database, store: FlakyStore, stored: Callable[..., tuple[str, list[str]]]
) -> None:
    _, (session_id,) = stored(1)
    with database.write() as session:
        sessions.delete(session, session_id)
    pauses = []
    for attempt in range(3):
        store.outages = 1
        assert drain_deletions(database, store).count == 0
        assert drain_deletions(database, store).count == 0  # not yet due
        assert len(store.batches) == attempt + 1
        with database.write() as session:
            row = session.get_one(DeletionRow, session_id)
            pauses.append((row.next_attempt_at or 0) - row.created_at)
            assert row.attempts == attempt + 1
            row.next_attempt_at = row.created_at
    assert [round(pause / deletion_drain.FIRST_PAUSE_SECONDS) for pause in pauses] == [1, 2, 4]
    assert used(database) == SIZE
    assert drain_deletions(database, store).count == 1
    assert stored_ids(store) == set()


@pytest.mark.usefixtures("small")
def test_a_large_job_is_hidden_at_once_and_no_kill_loses_sight_of_a_file(
    database: Database, store: FlakyStore, stored: Callable[..., tuple[str, list[str]]]
) -> None:
    job_id, made = stored(7)
    _, kept = stored(1)
    with database.write() as session:
        job_deletion.delete(session, job_id)
    with database.read() as session:
        (sample_id,) = session.scalars(sa.select(SampleRow.id).where(SampleRow.session_id == made[-1]))
        for look in (
            lambda: jobs.get(session, job_id),
            lambda: samples.get(session, sample_id),
            lambda: sessions.get(session, made[-1]),
        ):
            with pytest.raises(NotFound):
                look()
        assert jobs.status_of(session, job_id) is None
        assert sessions.by_ids(session, made) == []
        assert sessions.totals(session, SessionFilter(job_id=job_id)).sessions == 0
        assert sessions.find(session, SessionFilter(tag="t"))[0][0].id == kept[0]
    for change in (jobs.cancel, job_deletion.delete, lambda session, one: leasing.claim(
        session, one, worker_id="w", count=1) or jobs.lock(session, one)):  # fmt: skip
        with pytest.raises(NotFound), database.write() as session:
            change(session, job_id)

    store.kills = 6
    for _ in range(6):
        with pytest.raises(Killed):
            drain_deletions(database, store)
        assert stored_ids(store) <= set(kept) | pending_ids(database)
        assert used(database) >= len(stored_ids(store)) * SIZE
        assert listed_ids(database) == set(kept)
    drain_deletions(database, store)
    assert stored_ids(store) == set(kept) == listed_ids(database)
    with database.read() as session:
        for table in (JobRow, SampleRow):
            assert session.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() == 1
        assert session.scalars(sa.select(EventRow.job_id).where(EventRow.job_id == job_id)).all() == []
        assert used(database) == SIZE


@pytest.mark.usefixtures("small")
def test_many_sessions_are_hidden_at_once_but_for_those_that_are_pinned(
    database: Database, store: FlakyStore, stored: Callable[..., tuple[str, list[str]]]
) -> None:
    job_id, made = stored(7)
    with database.write() as session:
        changes.update(session, made[:1], SessionUpdate(pinned=True))
    gone = changes.delete_matching(database, SessionFilter(job_id=job_id))
    assert (gone.sessions, gone.bytes) == (6, 6 * SIZE)
    assert listed_ids(database) == set(made[:1])
    with database.write() as session:
        assert changes.update(session, made, SessionUpdate(tags=["x"])) == 1
        with pytest.raises(NotFound):
            sessions.delete(session, made[1])
    assert used(database) == 7 * SIZE
    drain_deletions(database, store)
    assert (stored_ids(store), used(database)) == (set(made[:1]), SIZE)
    with database.read() as session:
        left = session.scalars(sa.select(SampleRow.session_id).where(SampleRow.session_id.is_not(None)))
        assert left.all() == made[:1]
        assert jobs.get(session, job_id).status == JobStatus.COMPLETED
    # what is left of the job goes too
    with database.write() as session:
        job_deletion.delete(session, job_id)
    drain_deletions(database, store)
    assert (stored_ids(store), pending_ids(database)) == (set(), set())


@pytest.mark.usefixtures("small")
def test_a_large_job_with_pinned_sessions_stays(
    database: Database, stored: Callable[..., tuple[str, list[str]]]
) -> None:
    job_id, made = stored(3)
    with database.write() as session:
        changes.update(session, made[:1], SessionUpdate(pinned=True))
    with pytest.raises(Conflict, match="1 sessions of job"), database.write() as session:
        job_deletion.delete(session, job_id, include_pinned=False)
    assert listed_ids(database) == set(made)
    assert pending_ids(database) == set()


@pytest.mark.usefixtures("small")
def test_a_large_queued_job_that_is_deleted_is_not_begun(database: Database, submit: Submit) -> None:
    job_id = submit(5)
    with database.write() as session:
        job_deletion.delete(session, job_id)
        assert leasing.claim(session, job_id, worker_id="w", count=1) == []
    with database.read() as session:
        pending = sa.select(sa.func.count()).where(SampleRow.status == SampleStatus.PENDING)
        assert session.execute(pending).scalar_one() == 5


def test_one_process_drains_at_a_time_and_stops_when_asked(
    database: Database, store: FlakyStore, stored: Callable[..., tuple[str, list[str]]]
) -> None:
    _, (session_id,) = stored(1)
    with database.write() as session:
        sessions.delete(session, session_id)
    with database.alone("deletions") as is_alone:
        assert is_alone
        assert drain_deletions(database, store).count == 0
    stop = threading.Event()
    stop.set()
    assert drain_deletions(database, store, stop).count == 0
    assert drain_deletions(database, store).count == 1


def test_a_file_whose_upload_broke_off_goes_after_a_while(database: Database, store: FlakyStore) -> None:
    file_id = new_file_id()
    with database.write() as session:
        deletions.begin_storing(session, file_id, "alice", SIZE)
    store.put_stream(f"files/{file_id}", [bytes(SIZE)])
    assert used(database) == SIZE
    assert drain_deletions(database, store).count == 0  # it may still be on its way
    with database.write() as session:
        deletions.give_up_storing(session, file_id)
    assert drain_deletions(database, store).count == 1
    assert stored_ids(store) == set()
    with pytest.raises(ServiceUnavailable, match="send it again"), database.write() as session:
        deletions.end_storing(session, file_id)


def test_a_file_that_got_its_row_after_all_is_not_removed(database: Database, store: FlakyStore) -> None:
    file_id = add_file(database, store)
    with database.write() as session:
        deletions.begin_storing(session, file_id, None, SIZE)
        deletions.give_up_storing(session, file_id)
    assert drain_deletions(database, store).count == 0
    assert stored_ids(store) == {file_id} == listed_ids(database)
    assert pending_ids(database) == set()
