"""Deleted things disappear at once, count until their files are gone, and no crash loses sight of a file."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from actograph.contract.errors import Conflict, NotFound, ServiceUnavailable
from actograph.contract.resources import JobStatus, SessionFile
from actograph.contract.specs import SessionUpdate
from actograph.settings import Settings
from storage import samples
from storage.accounts import quotas
from storage.artifacts.local import LocalStore
from storage.files import files
from storage.index import visible
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.queue import leases
from storage.sessions import changes, sessions
from storage.sessions.filter import SessionFilter
from storage.sessions.writer import session_prefix
from storage.tables.models import EventRow, FileRow, JobRow, SampleRow, SessionRow
from storage.upkeep import reaper
from tests.support import leasing
from tests.support.samples import add_file, age_removals, result, session_of

Submit = Callable[..., str]
Stored = Callable[..., tuple[str, list[str]]]
SIZE = 64
NAMES = ("manifest.json", "activations.safetensors")


class FlakyStore(LocalStore):
    """Refuses objects, as S3 does with a 503, or ends its process before or after the next removals."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.refused: set[str] = set()
        self.kills = 0
        self.batches: list[int] = []

    def delete_many(self, prefixes: Mapping[str, Sequence[str] | None]) -> dict[str, str]:
        self.batches.append(len(prefixes))
        self.kills -= 1
        if self.kills >= 0 and self.kills % 2:
            raise Killed
        failures = dict.fromkeys(self.refused & prefixes.keys(), "503 Slow Down")
        failures |= super().delete_many({one: prefixes[one] for one in prefixes.keys() - failures.keys()})
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
    monkeypatch.setattr(reaper, "SLICE", 2)


@pytest.fixture
def stored(database: Database, store: FlakyStore, submit: Submit) -> Stored:
    """Makes an ended job with `count` stored sessions: its id and theirs."""

    def make(count: int = 1) -> tuple[str, list[str]]:
        job_id, made = submit(count), []
        for _ in range(count):
            (lease,) = leasing.begin(database, job_id)
            assert lease.session_id is not None
            put(store, lease.session_id)
            files = [SessionFile(name=name, bytes=SIZE // 2, sha256="0" * 64) for name in NAMES]
            with database.write() as session:
                made_of = session_of(lease, files=files, tags=["t"])
                leasing.complete(session, lease, result(session_id=lease.session_id), made_of)
            made.append(lease.session_id)
        return job_id, made

    return make


def put(store: LocalStore, session_id: str) -> None:
    with store.stage(session_prefix(session_id)) as stage:
        for name in NAMES:
            with stage.create(name) as file:
                file.write(bytes(SIZE // 2))
        stage.commit()


def upload(database: Database, store: LocalStore, expires_after: float | None = None) -> str:
    file_id = add_file(database, size=SIZE, expires_after=expires_after)
    store.put_stream(f"files/{file_id}", [bytes(SIZE)])
    return file_id


def stored_ids(store: LocalStore) -> set[str]:
    parents = (store.root / parent for parent in ("sessions", "files"))
    return {path.name for parent in parents if parent.exists() for path in parent.iterdir()}


def shown_ids(database: Database) -> set[str]:
    """Ids that a reader sees."""
    with database.read() as session:
        return {*sessions.ids(session, SessionFilter()), *session.scalars(sa.select(FileRow.id))}


def indexed_ids(database: Database) -> set[str]:
    """Ids of rows, prefixes ones included."""
    with database.read() as session, visible.hidden_too(session):
        return {one for row in (SessionRow, FileRow) for one in session.scalars(sa.select(row.id))}


def used(database: Database) -> int:
    """Bytes in the store, by the sums that quotas read and by the detailed ones."""
    with database.read() as session:
        size = sum(quotas.used(session).values())
        assert size == sum(one.total_bytes for one in quotas.usage(session).values())
        return size


def test_a_deleted_job_disappears_at_once_and_counts_until_its_files_are_gone(
    database: Database, store: FlakyStore, stored: Stored
) -> None:
    job_id, made = stored(2)
    _, kept = stored(1)
    with database.write() as session:
        control.delete(session, job_id)
    assert shown_ids(database) == set(kept)
    assert (stored_ids(store), used(database)) == ({*made, *kept}, 3 * SIZE)
    with database.read() as session:
        usage = quotas.shown(session, Settings())
    shown = (usage.sessions, usage.session_bytes, usage.deleting, usage.deleting_bytes)
    assert shown == (1, SIZE, 2, 2 * SIZE)
    # the process was killed before the files went; another one finds them
    reaped = reaper.reap(database, store)
    assert (reaped.count, reaped.bytes) == (2, 2 * SIZE)
    assert (stored_ids(store), used(database)) == (set(kept), SIZE)
    with database.read() as session:
        assert not reaper.is_any_due(session)


@pytest.mark.parametrize("what", ["session", "sessions", "expired sessions", "file", "expired file"])
def test_whatever_is_deleted_leaves_its_files_to_the_background(
    database: Database, store: FlakyStore, stored: Stored, what: str
) -> None:
    _, (session_id,) = stored(1)
    file_id = upload(database, store, expires_after=-1 if what == "expired file" else None)
    deleted = file_id if "file" in what else session_id
    with database.write() as session:
        if what == "session":
            changes.delete(session, session_id)
        elif what == "file":
            files.delete(session, file_id)
        elif what == "expired sessions":
            changes.update(session, [session_id], SessionUpdate(expires_at=1))
    if what == "sessions":
        changes.delete_matching(database, SessionFilter(tag="t"))
    elif what == "expired sessions":
        assert changes.expire(database).sessions == 1
        assert changes.expire(database).sessions == 0
    elif what == "expired file":
        files.expire(database)
    both = {session_id, file_id}
    assert (shown_ids(database), indexed_ids(database)) == (both - {deleted}, both)
    assert (stored_ids(store), used(database)) == (both, 2 * SIZE)
    reaper.reap(database, store)
    assert stored_ids(store) == indexed_ids(database) == both - {deleted}
    assert used(database) == SIZE


@pytest.mark.usefixtures("small")
def test_what_the_store_keeps_is_tried_again_later_and_holds_up_nothing(
    database: Database, store: FlakyStore, stored: Stored
) -> None:
    refused_job, refused = stored(2)
    job_id, made = stored(2)
    with database.write() as session:
        changes.delete(session, refused[0])
        control.delete(session, refused_job)
        control.delete(session, job_id)
    store.refused = {session_prefix(one) for one in refused}
    reaped = sum(reaper.reap(database, store).count for _ in range(3))
    assert reaped == len(made)
    attempts = len(store.batches)
    assert reaper.reap(database, store).count == 0
    assert len(store.batches) == attempts, "not yet due"
    assert (stored_ids(store), used(database)) == (set(refused), 2 * SIZE)
    store.refused.clear()
    age_removals(database)
    assert reaper.reap(database, store).count == 2
    assert stored_ids(store) == set()
    with database.read() as session, visible.hidden_too(session):
        assert session.scalars(sa.select(JobRow.id)).all() == []


@pytest.mark.usefixtures("small")
def test_a_deleted_job_is_hidden_from_everybody_and_no_kill_loses_sight_of_a_file(
    database: Database, store: FlakyStore, stored: Stored
) -> None:
    job_id, made = stored(7)
    _, kept = stored(1)
    with database.read() as session:
        (sample_id,) = session.scalars(sa.select(SampleRow.id).where(SampleRow.session_id == made[-1]))
    with database.write() as session:
        control.delete(session, job_id)
    with database.read() as session:
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
    for change in (jobs.cancel, control.delete, jobs.lock):
        with pytest.raises(NotFound), database.write() as session:
            change(session, job_id)
    with database.write() as session:
        assert leasing.claim(session, job_id, worker_id="w") == []

    store.kills = 6
    for _ in range(6):
        with pytest.raises(Killed):
            reaper.reap(database, store)
        assert stored_ids(store) <= indexed_ids(database)
        assert used(database) >= len(stored_ids(store)) * SIZE
        assert shown_ids(database) == set(kept)
        age_removals(database)
    reaper.reap(database, store)
    assert stored_ids(store) == set(kept) == indexed_ids(database)
    with database.read() as session, visible.hidden_too(session):
        for table in (JobRow, SampleRow):
            assert session.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() == 1
        assert session.scalars(sa.select(EventRow.job_id).where(EventRow.job_id == job_id)).all() == []
    assert used(database) == SIZE


def test_pinned_sessions_stay_and_samples_forget_the_others(
    database: Database, store: FlakyStore, stored: Stored
) -> None:
    job_id, made = stored(7)
    with database.write() as session:
        changes.update(session, made[:1], SessionUpdate(pinned=True))
    with pytest.raises(Conflict, match="1 sessions of job"), database.write() as session:
        control.delete(session, job_id, include_pinned=False)
    assert shown_ids(database) == set(made)
    gone = changes.delete_matching(database, SessionFilter(job_id=job_id))
    assert (gone.sessions, gone.bytes) == (6, 6 * SIZE)
    assert shown_ids(database) == set(made[:1])
    with database.write() as session:
        assert changes.update(session, made, SessionUpdate(tags=["x"])) == 1
        with pytest.raises(NotFound):
            changes.delete(session, made[1])
    assert used(database) == 7 * SIZE
    reaper.reap(database, store)
    assert (stored_ids(store), used(database)) == (set(made[:1]), SIZE)
    with database.read() as session:
        left = session.scalars(sa.select(SampleRow.session_id).where(SampleRow.session_id.is_not(None)))
        assert left.all() == made[:1]
        assert jobs.get(session, job_id).status == JobStatus.COMPLETED


def test_one_process_reaps_at_a_time_and_stops_when_asked(
    database: Database, store: FlakyStore, stored: Stored
) -> None:
    _, (session_id,) = stored(1)
    with database.write() as session:
        changes.delete(session, session_id)
    with database.alone("reaper") as is_alone:
        assert is_alone
        assert reaper.reap(database, store).count == 0
    stop = threading.Event()
    stop.set()
    assert reaper.reap(database, store, stop).count == 0
    assert reaper.reap(database, store).count == 1


def test_a_file_whose_upload_broke_off_goes_after_a_while(database: Database, store: FlakyStore) -> None:
    with database.write() as session:
        file_id = files.announce(session, filename="a", purpose="dataset", owner="alice", size=SIZE)
    store.put_stream(f"files/{file_id}", [bytes(SIZE)])
    assert (shown_ids(database), used(database)) == (set(), SIZE)
    assert reaper.reap(database, store).count == 0, "it may still arrive"
    with database.write() as session:
        files.abandon(session, file_id)
    with pytest.raises(ServiceUnavailable, match="send it again"), database.write() as session:
        files.publish(session, file_id, size=SIZE, sha256="")
    assert reaper.reap(database, store).count == 1
    assert stored_ids(store) == set()


@pytest.mark.parametrize("end", ["killed", "returned", "lost device", "published"])
def test_every_claimed_session_is_published_or_removed(
    database: Database, store: FlakyStore, submit: Submit, end: str
) -> None:
    job_id = submit()
    with database.write() as session:
        (lease,) = leasing.claim(session, job_id, worker_id="w", count=1)
    session_id = lease.session_id
    assert session_id is not None
    put(store, session_id)
    assert reaper.reap(database, store).count == 0, "its worker may still be at work"
    with database.write() as session:
        if end == "returned":
            leases.give_back(session, [lease])
        elif end == "lost device":
            leases.give_back(session, [lease], ServiceUnavailable("gone"))
        elif end == "published":
            assert sessions.publish(session, session_of(lease)) == {session_id}
    if end == "killed":
        age_removals(database)
    with database.write() as session:
        assert sessions.publish(session, session_of(lease)) == set(), "it can no longer be published"
    assert reaper.reap(database, store).count == (end != "published")
    assert stored_ids(store) == shown_ids(database) == ({session_id} if end == "published" else set())


def test_a_condemned_session_cannot_be_published(
    database: Database, store: FlakyStore, submit: Submit
) -> None:
    job_id = submit()
    with database.write() as session:
        (lease,) = leasing.claim(session, job_id, worker_id="w", count=1)
    assert lease.session_id is not None
    store.refused = {session_prefix(lease.session_id)}
    age_removals(database)
    assert reaper.reap(database, store).count == 0
    with database.write() as session:
        assert sessions.publish(session, session_of(lease)) == set()
