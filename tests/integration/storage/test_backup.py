"""Backups of a busy service, and drills: restored to another place, they are complete."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typing_extensions import override

from actograph.contract.errors import Conflict, InvalidRequest, NotFound, ServiceUnavailable
from storage import backup, index_backup, migrate
from storage.artifacts.local import LocalStore
from storage.index.database import Database
from storage.sessions import changes
from storage.tables.models import SessionRow
from storage.upkeep import reaper
from storage.upkeep.store_verify import verify
from tests.support import leasing
from tests.support.samples import add_file, result, session_of, write_session
from tests.support.servers import postgres
from tests.support.submitting import insert_capture

pytestmark = pytest.mark.integration


class BusyStore(LocalStore):
    """A store with changes by others before the first file of a backup is read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.meanwhile: list[Callable[[], object]] = []

    @override
    def stream(self, *given: Any, **more: Any) -> Iterator[bytes]:
        while self.meanwhile:
            self.meanwhile.pop()()
        return super().stream(*given, **more)


class Service:
    """An index and a store, and what a worker and a user do with them."""

    def __init__(self, database: Database, store: BusyStore) -> None:
        self.database, self.store = database, store
        self._job_id = insert_capture(database, map(str, range(9)))

    def finish(self) -> str:
        with self.database.write() as session:
            (lease,) = leasing.claim(session, self._job_id, worker_id="w", count=1)
        session_id, written = write_session(self.store, lease)
        with self.database.write() as session:
            leasing.complete(session, lease, result(session_id=session_id), session_of(lease, files=written))
        return session_id

    def upload(self, data: bytes) -> str:
        file_id = add_file(self.database, size=len(data), sha256=sha256(data).hexdigest())
        self.store.put_stream(f"files/{file_id}", [data])
        return file_id


@pytest.fixture(autouse=True)
def postgres_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the programs of the server's version on PATH."""
    folder = next(postgres.installed()).folder
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Service:
    return Service(database, BusyStore(tmp_path / "artifacts"))


@pytest.fixture
def empty(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[Database]:
    """Another index of the same kind, without tables."""
    url = f"sqlite:///{tmp_path / 'again' / 'actograph.db'}"
    opened = Database(url if database.is_sqlite else request.getfixturevalue("new_postgres")())
    yield opened
    opened.close()


def test_a_drill_while_the_service_is_busy(service: Service, empty: Database, tmp_path: Path) -> None:
    kept, deleted, folder = service.finish(), service.finish(), tmp_path / "backup"
    file_id = service.upload(b"problems")

    def delete() -> None:
        with service.database.write() as session:
            changes.delete(session, deleted)
        reaper.reap(service.database, service.store)

    service.store.meanwhile = [delete, service.finish]
    record = backup.save(service.database, service.store, folder)
    assert (service.store.meanwhile, record["damaged"]) == ([], [])
    reaper.reap(service.database, service.store)
    assert not service.store.exists(f"sessions/{deleted}"), "the deletion waited for the backup"

    store = LocalStore(tmp_path / "restored")
    assert backup.restore(empty, store, folder) == record
    found = verify(empty, store, after=None, sample=1.0, seed=0, seconds=60, older_than_seconds=-60)
    problems = [problem for problem in found.problems if problem.problem != "orphaned"]
    assert (problems, found.checked >= 2) == ([], True)
    assert {kept, deleted} <= {one.id for one in store.list_prefixes("sessions")}
    assert b"".join(store.stream(f"files/{file_id}")) == b"problems"
    with pytest.raises(Conflict, match="the index is not empty"):
        backup.restore(empty, store, folder)


def test_a_second_backup_copies_what_is_new(service: Service, empty: Database, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    first = service.finish()
    backup.save(service.database, service.store, folder)
    shutil.rmtree(service.store.root / "sessions" / first)
    second = service.finish()
    manifest = service.store.root / "sessions" / second / "manifest.json"
    manifest.write_text(manifest.read_text().replace("demo", "omed"))
    record = backup.save(service.database, service.store, folder)
    assert record["damaged"] == [f"sessions/{second}"], "the first is in the backup"
    (folder / backup.RECORD).unlink()
    with pytest.raises(NotFound, match="no complete backup"):
        backup.restore(empty, service.store, folder)
    (folder / backup.RECORD).write_text(json.dumps(record | {"index": "other"}))
    with pytest.raises(InvalidRequest, match="the backup is of other"):
        backup.restore(empty, service.store, folder)


def test_postgres_needs_its_own_programs(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(request.getfixturevalue("postgres_url"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceUnavailable, match="pg_dump is not installed"):
        backup.save(database, LocalStore(tmp_path / "artifacts"), tmp_path / "backup")
    database.close()


@pytest.mark.soak
def test_the_commands(sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Service(sqlite, BusyStore(tmp_path / "artifacts")).finish()
    monkeypatch.setenv("ACTOGRAPH_HOME", str(tmp_path))
    folder, home = tmp_path / "backup", tmp_path / "again"

    def run(*words: object) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "actograph", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    done = run("backup", folder)
    assert (done.returncode, done.stdout) == (0, "saved: the index, 1 sessions and uploads\n"), done.stderr
    assert folder.stat().st_mode & 0o077 == 0
    done = run("restore", folder, "--home", home)
    assert (done.returncode, done.stdout) == (0, "restored: the index, 1 sessions and uploads\n"), done.stderr
    again = run("restore", folder, "--home", home)
    assert (again.returncode, again.stderr.startswith("the index is not empty")) == (1, True)


def test_a_copy_from_before_a_migration_is_put_back(empty: Database, tmp_path: Path) -> None:
    """Also tables that the migration made are gone, those of others stay, and ids are counted on."""
    migrate.upgrade(empty)
    database, folder = empty, tmp_path / "copies"
    service = Service(database, BusyStore(tmp_path / "artifacts"))
    assert index_backup.due(database) is None
    before = service.finish()

    def run(*statements: str) -> None:
        with database.engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))

    def sessions_and_tables() -> tuple[set[str], set[str]]:
        with database.read() as session:
            ids = set(session.scalars(sa.select(SessionRow.id)))
        return ids, set(sa.inspect(database.engine).get_table_names())

    run("CREATE TABLE of_others (id INTEGER)", "INSERT INTO of_others VALUES (1)")
    file = index_backup.save(database, folder)
    assert index_backup.put_back(database, file) is None, "nothing was migrated"
    found = sessions_and_tables()
    newer = "CREATE TABLE vectors_2 (id INTEGER)" if database.is_sqlite else "DROP TABLE vectors"
    run("UPDATE alembic_version SET version_num = '9000'", newer, "UPDATE of_others SET id = 2")
    after = service.finish()
    if not database.is_sqlite:
        # a reader keeps the tables as they are
        with database.engine.connect() as reader, pytest.MonkeyPatch.context() as patch:
            reader.execute(sa.text("SELECT count(*) FROM jobs"))
            patch.setattr(index_backup, "_LOCK_SECONDS", 0.01)
            with pytest.raises(ServiceUnavailable, match="lock timeout"):
                index_backup.put_back(database, file)
        assert migrate.current(database) == "9000"
    done = index_backup.put_back(database, file)
    assert done is not None
    assert done["restored"] == str(file)
    assert sessions_and_tables() == found
    assert (before in found[0], after in found[0]) == (True, False)
    service.finish()
    with database.engine.connect() as connection:
        (value,) = connection.execute(sa.text("SELECT id FROM of_others")).one()
    assert value == (1 if database.is_sqlite else 2), "SQLite's file is ours as a whole"
    kept = index_backup.put_back(database, Path(done["kept"]))
    assert kept is not None
    assert after in sessions_and_tables()[0], "what was recorded since the migration is not lost"
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, *folder.iterdir()))


def test_a_copy_that_fails_leaves_no_file(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_database: Database, file: Path, *_: str) -> None:
        file.write_bytes(b"half")
        raise ServiceUnavailable("the disk is full")

    monkeypatch.setattr(index_backup, "copy_index", fail)
    with pytest.raises(ServiceUnavailable):
        index_backup.save(service.database, tmp_path / "copies")
    assert list((tmp_path / "copies").iterdir()) == []
