"""Superseded sessions are swept; what the index does not know, or may still need, never is."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from actograph.contract.resources import SampleStatus
from storage.artifacts.local import LocalStore
from storage.artifacts.store import StoredPrefix
from storage.index.database import Database
from storage.queue.leases import LeasedSample
from storage.sessions import sessions
from storage.sessions.writer import session_prefix
from storage.tables.models import DeletionRow, SampleRow
from storage.upkeep import sweep
from storage.upkeep.sweep import Sweep, sweep_sessions
from tests.support import leasing
from tests.support.samples import result, session_of, write_session

Submit = Callable[..., str]
OLD = 2 * sweep.ORPHAN_SECONDS


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "artifacts")


@pytest.fixture
def lease(database: Database, submit: Submit) -> LeasedSample:
    return claim(database, submit())


def claim(database: Database, job_id: str) -> LeasedSample:
    with database.write() as session:
        (lease,) = leasing.claim(session, job_id, worker_id="w", count=1)
    return lease


def write(store: LocalStore, lease: LeasedSample, *, age: float = OLD) -> str:
    """A session's files as the worker leaves them before the commit to the index."""
    session_id, _ = write_session(store, lease)
    set_age(store, session_id, age)
    return session_id


def set_age(store: LocalStore, session_id: str, age: float) -> None:
    folder = store.root / session_prefix(session_id)
    for path in (*folder.iterdir(), folder):
        os.utime(path, (time.time() - age,) * 2)


def commit(database: Database, lease: LeasedSample, session_id: str | None) -> None:
    with database.write() as session:
        new = None if session_id is None else session_of(lease, id=session_id)
        leasing.complete(session, lease, result(session_id=session_id), new)


def stored(store: LocalStore) -> set[str]:
    return {p.prefix.rpartition("/")[2] for p in store.list_prefixes("sessions")}


def swept(database: Database, store: LocalStore) -> Sweep:
    return sweep_sessions(database, store, delete=True)


def names(prefixes: list[StoredPrefix]) -> set[str]:
    return {p.prefix.rpartition("/")[2] for p in prefixes}


def test_what_a_killed_worker_left_goes_once_the_sample_has_another_session(
    database: Database, store: LocalStore, lease: LeasedSample
) -> None:
    orphan = write(store, lease)
    # until the sample is run again these may be the only files of it
    found = swept(database, store)
    assert (found.orphans, names(found.unknown)) == ([], {orphan})
    kept = write(store, lease)
    commit(database, lease, kept)
    shown = sweep_sessions(database, store, delete=False)
    assert names(shown.orphans) == {orphan}
    assert stored(store) == {orphan, kept}
    found = swept(database, store)
    assert (names(found.orphans), found.unknown) == ({orphan}, [])
    assert found.orphan_bytes > 0
    assert stored(store) == {kept}
    assert swept(database, store) == Sweep()


def test_young_ones_are_left_alone(database: Database, store: LocalStore, lease: LeasedSample) -> None:
    orphan, kept = write(store, lease, age=sweep.ORPHAN_SECONDS - 60), write(store, lease)
    commit(database, lease, kept)
    assert swept(database, store) == Sweep()
    assert stored(store) == {orphan, kept}


def test_files_of_a_session_that_a_user_deleted_go(
    database: Database, store: LocalStore, lease: LeasedSample
) -> None:
    left = write(store, lease)
    commit(database, lease, left)
    with database.write() as session:
        sessions.delete(session, left)
        session.execute(sa.delete(DeletionRow))  # as a version left it that kept no list, killed here
    assert names(swept(database, store).orphans) == {left}
    assert stored(store) == set()


def test_another_or_empty_index_removes_nothing(
    database: Database, store: LocalStore, submit: Submit
) -> None:
    theirs = LeasedSample(
        id="smp_" + "1" * 32, job_id="job_" + "2" * 32, sample_index=0, condition="", epoch=0,
        input={}, seed=0, token=1,
    )  # fmt: skip
    real = {write(store, theirs) for _ in range(3)}
    assert names(swept(database, store).unknown) == real
    lease = claim(database, submit())
    mine = write(store, lease)
    commit(database, lease, mine)
    assert names(swept(database, store).unknown) == real
    assert stored(store) == real | {mine}


@pytest.mark.parametrize("status", [s for s in SampleStatus if s is not SampleStatus.COMPLETED])
def test_an_index_restored_from_an_old_copy_removes_nothing(
    database: Database, store: LocalStore, lease: LeasedSample, status: SampleStatus
) -> None:
    """It knows the sample, but not yet that it was completed with this session."""
    real = write(store, lease)
    with database.write() as session:
        session.execute(sa.update(SampleRow).values(status=status))
    assert names(swept(database, store).unknown) == {real}
    assert stored(store) == {real}


def test_the_last_files_of_a_sample_stay_when_its_own_session_is_missing(
    database: Database, store: LocalStore, lease: LeasedSample
) -> None:
    orphan, kept = write(store, lease), write(store, lease)
    commit(database, lease, kept)
    store.delete_prefix(session_prefix(kept))
    assert names(swept(database, store).unknown) == {orphan}
    assert stored(store) == {orphan}


def test_an_unreadable_manifest_proves_nothing(
    database: Database, store: LocalStore, lease: LeasedSample
) -> None:
    damaged, kept = write(store, lease), write(store, lease)
    commit(database, lease, kept)
    (store.root / session_prefix(damaged) / "manifest.json").write_text("{")
    set_age(store, damaged, OLD)
    assert names(swept(database, store).unknown) == {damaged}


def test_the_search_goes_through_many_batches_and_ends_when_told(
    database: Database, store: LocalStore, lease: LeasedSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_BATCH", 2)
    orphans, kept = {write(store, lease) for _ in range(5)}, write(store, lease)
    commit(database, lease, kept)
    stop = threading.Event()
    stop.set()
    assert sweep_sessions(database, store, delete=True, stop=stop) == Sweep()
    assert names(swept(database, store).orphans) == orphans


def test_the_program(
    database: Database,
    store: LocalStore,
    lease: LeasedSample,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    orphan, kept = write(store, lease), write(store, lease)
    commit(database, lease, kept)
    monkeypatch.setenv("ACTOGRAPH_DATABASE_URL", database.url.render_as_string(hide_password=False))
    monkeypatch.setenv("ACTOGRAPH_ARTIFACT_URL", store.root.as_uri())
    monkeypatch.setattr("sys.argv", ["sweep", "--dry-run"])
    assert sweep.main() == 0
    assert capsys.readouterr().out.startswith("to be removed: 1 superseded sessions, ")
    assert stored(store) == {orphan, kept}
    monkeypatch.setattr("sys.argv", ["sweep", "--delete"])
    assert sweep.main() == 0
    assert stored(store) == {kept}


def test_the_program_refuses_an_index_that_was_never_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACTOGRAPH_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["sweep", "--delete"])
    assert sweep.main() == 1
    assert "python -m storage.migrate" in capsys.readouterr().err
