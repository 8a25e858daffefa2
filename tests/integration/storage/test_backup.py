"""Backup and restore of index and store, on SQLite and on Postgres."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from actograph.contract.errors import Conflict, InvalidRequest, StoreDamaged
from actograph.contract.specs import job_spec_adapter
from storage import migrate, samples
from storage.artifacts.local import LocalStore
from storage.artifacts.s3 import S3Store
from storage.artifacts.store import ArtifactStore
from storage.backup import __main__ as program
from storage.backup import backup, store_copy
from storage.files import files
from storage.index import deletions
from storage.index.database import Database
from storage.index.ids import new_file_id, new_session_id
from storage.jobs import jobs, session_removal
from storage.samples import SampleResult
from storage.samples.expansion import capture_samples
from storage.sessions import sessions
from storage.sessions.manifest import SessionManifest, StoredTensor
from storage.sessions.sessions import NewSession
from storage.sessions.writer import SessionWriter, TensorRows
from storage.tables.base import Base
from storage.upkeep.deletion_drain import drain_deletions
from storage.upkeep.store_verify import verify
from tests.support.indexes import create_index
from tests.support.servers.swift import SwiftServer

pytestmark = pytest.mark.integration
ROWS = np.arange(12, dtype="<f4").reshape(3, 4)
Target = Callable[[], tuple[Database, LocalStore]]


@dataclass
class Place:
    """A database and a store with a job of six samples."""

    database: Database
    store: ArtifactStore
    job_id: str

    def finish(self) -> str:
        """Complete the next sample as a worker does. Returns its session."""
        with self.database.write() as session:
            (lease,) = samples.claim(session, self.job_id, worker_id="w", count=1, lease_seconds=60)
        session_id = new_session_id()
        manifest = SessionManifest(
            session_id=session_id, job_id=lease.job_id, sample_id=lease.id, sample_index=0, model="demo",
            capture={}, capture_sha256="0" * 64, dtype="model", prompt_tokens=2, generated_tokens=2, seed=0,
            created_at=0, tensors={"embed": StoredTensor(shape=(3, 4), dtype="F32")},
        )  # fmt: skip
        with SessionWriter(self.store, session_id) as writer:
            writer.write_shard([TensorRows("embed", "F32", (3, 4), 0, ROWS)])
            written = writer.finish(manifest, [1, 2, 3, 4])
        result = SampleResult(
            prompt="Üben\t\\N\n", completion="", finish_reason="length", prompt_tokens=2, generated_tokens=2,
            scores={}, session_id=session_id,
        )  # fmt: skip
        new = NewSession(
            id=session_id, job_id=lease.job_id, sample_id=lease.id, sample_index=0, condition="", epoch=0,
            model="demo", prompt_tokens=2, generated_tokens=2, rows=3, dtype="F32", hooks={}, files=written,
            correct=None,
        )  # fmt: skip
        with self.database.write() as session:
            samples.complete(session, lease, result)
            sessions.insert(session, new)
        return session_id

    def upload(self) -> str:
        file_id = new_file_id()
        size, digest = self.store.put_stream(f"files/{file_id}", [b"some rows\n"])
        with self.database.write() as session:
            files.insert(session, file_id=file_id, filename="f", purpose="dataset", size=size, sha256=digest)
        return file_id

    def rows(self) -> dict[str, list[Any]]:
        return content(self.database)


def content(database: Database) -> dict[str, list[Any]]:
    """All rows of all tables."""
    with database.read() as session:
        return {
            table.name: sorted(map(repr, session.execute(sa.select(table)).all()))
            for table in Base.metadata.sorted_tables
        }


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def with_job(database: Database, store: ArtifactStore) -> Place:
    """A running job of six samples, none of them done."""
    spec: Any = job_spec_adapter.validate_python(
        {"kind": "capture", "model": "demo", "inputs": [{"prompt": str(i)} for i in range(6)]}
    )
    with database.write() as session:
        row = jobs.create(session, kind="capture", model="demo", spec=spec, hooks=None, total=6)
        samples.insert(session, row.id, capture_samples(spec))
        jobs.start(session, row.id)
    return Place(database, store, row.id)


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if kind == "sqlite":
        database = Database(f"sqlite:///{tmp_path / 'index.db'}")
        create_index(database)
    else:
        database = Database(request.getfixturevalue("postgres_url"))
    yield with_job(database, LocalStore(tmp_path / "artifacts"))
    database.close()


@pytest.fixture
def target(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    """Makes empty places to restore to."""
    made: list[Database] = []

    def make() -> tuple[Database, LocalStore]:
        folder = tmp_path / f"restored-{len(made)}"
        url = f"sqlite:///{folder / 'index.db'}" if kind == "sqlite" else None
        made.append(Database(url or request.getfixturevalue("new_postgres")()))
        return made[-1], LocalStore(folder / "artifacts")

    yield make
    for one in made:
        one.close()


def problems(database: Database, store: ArtifactStore) -> list[Any]:
    return verify(database, store, seconds=60, older_than_seconds=0).problems


def test_what_comes_back_is_the_same_and_the_drain_goes_on(
    place: Place, target: Target, tmp_path: Path
) -> None:
    done = {place.finish(), place.finish()}
    place.upload()
    before = place.rows()
    record = backup.save(place.database, place.store, tmp_path / "backup")
    assert (record.sessions, record.files, record.damaged) == (2, 1, [])
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0
    place.finish()  # the service goes on; this is not in the backup

    database, store = target()
    assert backup.restore(database, store, tmp_path / "backup") == record
    assert content(database) == before
    assert migrate.current(database) == migrate.head()
    assert problems(database, store) == []
    restored = Place(database, store, place.job_id)
    later = [restored.finish() for _ in range(4)]
    assert len({*done, *later}) == 6
    assert problems(database, store) == []
    # and the restored service can be backed up itself
    assert backup.save(database, store, tmp_path / "second").sessions == 6


def test_a_later_backup_copies_only_what_is_new(
    place: Place, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backup"
    first, second = place.finish(), place.finish()
    backup.save(place.database, place.store, folder)
    copied: list[str] = []
    copy_session = store_copy._copy_session

    def watched(source: Any, to: Any, one: Any) -> None:
        copied.append(one.prefix)
        copy_session(source, to, one)

    monkeypatch.setattr(store_copy, "_copy_session", watched)
    with place.database.write() as session:
        session_removal.remove(session, [first])
    drain_deletions(place.database, place.store)
    third = place.finish()
    record = backup.save(place.database, place.store, folder)
    assert copied == [f"sessions/{third}"]
    assert record.sessions == 2
    assert {path.name for path in (folder / "artifacts/sessions").iterdir()} == {second, third}
    assert [path.name for path in folder.glob("index-*")] == [record.snapshot]
    database, store = target()
    backup.restore(database, store, folder)
    assert problems(database, store) == []


def test_files_of_sessions_that_are_deleted_meanwhile_are_kept_until_its_end(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed = place.finish()
    copy_all = store_copy.copy_all

    def deleting(*arguments: Any) -> list[str]:
        with place.database.write() as session:
            session_removal.remove(session, [doomed])
        assert drain_deletions(place.database, place.store).count == 0
        return copy_all(*arguments)

    monkeypatch.setattr("storage.backup.backup.copy_all", deleting)
    record = backup.save(place.database, place.store, tmp_path / "backup")
    assert (record.sessions, record.damaged) == (1, [])
    assert drain_deletions(place.database, place.store).count == 1
    with place.database.read() as session:
        assert deletions.pending_ids(session, [doomed]) == set()


def test_damage_is_listed_and_the_rest_is_saved(
    place: Place, target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    good, damaged = place.finish(), place.finish()
    assert isinstance(place.store, LocalStore)
    file = next(
        path for path in (place.store.root / "sessions" / damaged).iterdir() if "json" not in path.name
    )
    file.write_bytes(bytes(file.stat().st_size))
    monkeypatch.setenv("ACTOGRAPH_DATABASE_URL", place.database.url.render_as_string(hide_password=False))
    monkeypatch.setenv("ACTOGRAPH_ARTIFACT_URL", place.store.root.as_uri())
    assert program.main(["save", str(tmp_path / "backup")]) == 3
    assert json.loads(capsys.readouterr().out)["damaged"] == [f"sessions/{damaged}"]
    database, store = target()
    backup.restore(database, store, tmp_path / "backup")
    assert store.exists(f"sessions/{good}")
    assert [one.id for one in problems(database, store)] == [damaged]


def full_disk(*_: Any) -> None:
    raise OSError("no space")


def test_an_interrupted_restore_is_run_again(
    place: Place, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.finish()
    backup.save(place.database, place.store, tmp_path / "backup")
    database, store = target()
    name = "restore_sqlite" if database.is_sqlite else "restore_postgres"
    with monkeypatch.context() as patch:
        patch.setattr(f"storage.backup.index_copy.{name}", full_disk)
        with pytest.raises(OSError, match="no space"):
            backup.restore(database, store, tmp_path / "backup")
    backup.restore(database, store, tmp_path / "backup")
    assert problems(database, store) == []


def test_nothing_is_overwritten(place: Place, tmp_path: Path) -> None:
    place.finish()
    backup.save(place.database, place.store, tmp_path / "backup")
    before = place.rows()
    with pytest.raises(Conflict, match="not empty"):
        backup.restore(place.database, place.store, tmp_path / "backup")
    assert place.rows() == before


def test_a_folder_that_is_no_backup(place: Place, target: Target, tmp_path: Path) -> None:
    database, store = target()
    with pytest.raises(InvalidRequest, match=r"backup\.json is missing"):
        backup.restore(database, store, tmp_path)
    place.finish()
    record = backup.save(place.database, place.store, tmp_path / "backup")
    session = next((tmp_path / "backup/artifacts/sessions").iterdir())
    for file in session.iterdir():
        file.unlink()
    with pytest.raises(StoreDamaged):
        backup.restore(database, store, tmp_path / "backup")
    other = "postgres" if record.index == "sqlite" else "sqlite"
    path = tmp_path / "backup" / "backup.json"
    path.write_text(path.read_text().replace(f'"{record.index}"', f'"{other}"'))
    with pytest.raises(InvalidRequest, match=other):
        backup.restore(database, store, tmp_path / "backup")


def test_a_bucket_is_restored_to_another(
    swift_server: SwiftServer, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The commands themselves, with the environment of a service that keeps its sessions in S3."""
    url = f"sqlite:///{tmp_path / 'index.db'}"
    database, store = Database(url), S3Store(s3_bucket, "lab/one", spool=tmp_path)
    create_index(database)
    place = with_job(database, store)
    done = {place.finish(), place.finish()}
    place.upload()
    monkeypatch.setenv("ACTOGRAPH_DATABASE_URL", url)
    monkeypatch.setenv("ACTOGRAPH_ARTIFACT_URL", f"s3://{s3_bucket}/lab/one")
    assert program.main(["save", str(tmp_path / "backup")]) == 0
    saved = json.loads(capsys.readouterr().out)
    assert (saved["sessions"], saved["files"], saved["damaged"]) == (2, 1, [])
    before = place.rows()
    database.close()

    other = swift_server.new_bucket()
    (tmp_path / "restored").mkdir()
    monkeypatch.setenv("ACTOGRAPH_DATABASE_URL", f"sqlite:///{tmp_path / 'restored' / 'index.db'}")
    monkeypatch.setenv("ACTOGRAPH_ARTIFACT_URL", f"s3://{other}/lab/two")
    assert program.main(["restore", str(tmp_path / "backup")]) == 0
    restored = Database(f"sqlite:///{tmp_path / 'restored' / 'index.db'}")
    there = S3Store(other, "lab/two", spool=tmp_path)
    assert content(restored) == before
    assert {one.prefix for one in there.list_prefixes("sessions")} == {f"sessions/{one}" for one in done}
    assert problems(restored, there) == []
    # a file that the bucket lost is named, and the rest is saved
    lost = done.pop()
    there.delete_prefix(f"sessions/{lost}")
    assert program.main(["save", str(tmp_path / "second")]) == 3
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["damaged"] == [f"sessions/{lost}"]
    restored.close()
