"""Save and restore a service's index and store.

The index is copied as of one moment. Files are stored before their rows, and pending deletions wait until the
backup ends, so every file of that moment can be copied afterwards.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actograph import __version__
from actograph.contract.errors import Conflict, InvalidRequest, StoreDamaged
from storage import migrate
from storage.artifacts.store import ArtifactStore
from storage.backup import index_copy, layout
from storage.backup.layout import BackupRecord
from storage.backup.store_copy import copy_all
from storage.index.database import Database

_POLL_SECONDS = 0.2


def save(database: Database, store: ArtifactStore, folder: Path) -> BackupRecord:
    """Back up to a folder while the service runs. A later call copies only new files.

    The former snapshot is kept until the new one is complete.

    Raises:
        ServiceUnavailable: index or store cannot be reached, or this version does not fit the schema.
    """
    migrate.require_current(database)
    revision = migrate.current(database)
    if revision != migrate.head():  # a newer schema may have tables that this version does not know
        raise Conflict(f"the database is at schema {revision}; back it up with the version that migrated it")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    created_at = time.time()
    snapshot = folder / time.strftime("index-%Y%m%dT%H%M%SZ", time.gmtime(created_at))
    shutil.rmtree(snapshot, ignore_errors=True)
    snapshot.mkdir(mode=0o700)
    kind = "sqlite" if database.is_sqlite else "postgres"
    record = BackupRecord(
        version=__version__, created_at=created_at, snapshot=snapshot.name, index=kind, revision=str(revision)
    )  # fmt: skip
    target = layout.artifacts(folder)
    with _deletions_held(database):
        target.sweep_staging(0.0)
        if database.is_sqlite:
            index_copy.save_sqlite(database, snapshot)
            layout.write_stored(snapshot / layout.STORED, index_copy.stored_of_sqlite(snapshot))
        else:
            with database.snapshot() as session:
                record.tables = index_copy.save_postgres(session, snapshot)
                layout.write_stored(snapshot / layout.STORED, index_copy.stored_files(session))
        record.damaged = copy_all(store, target, layout.read_stored(snapshot / layout.STORED))
    for one in layout.read_stored(snapshot / layout.STORED):
        record.sessions += one.prefix.startswith("sessions/")
        record.files += one.prefix.startswith("files/")
        record.bytes += sum(file.bytes for file in one.files)
    layout.write_record(folder, record)
    _remove_former(folder, record)
    return record


def restore(database: Database, store: ArtifactStore, folder: Path) -> BackupRecord:
    """Restore a backup to an empty index, and copy to the store what it lacks.

    Files come first and the index last, so an interrupted restore is run again.

    Raises:
        InvalidRequest: the folder has no backup for this kind of index.
        Conflict: the index is not empty.
        StoreDamaged: a stored file of the backup is missing or damaged; the index stays empty.
    """
    record = layout.read_record(folder)
    kind = "sqlite" if database.is_sqlite else "postgres"
    if record.index != kind:
        raise InvalidRequest(f"the backup has a {record.index} index; ACTOGRAPH_DATABASE_URL names {kind}")
    if not index_copy.is_empty(database):
        raise Conflict("the index is not empty; restore to a new home folder or database")
    snapshot = folder / record.snapshot
    known = set(record.damaged)
    stored = (one for one in layout.read_stored(snapshot / layout.STORED) if one.prefix not in known)
    if damaged := copy_all(layout.artifacts(folder), store, stored):
        raise StoreDamaged(f"the backup lacks or has damaged {len(damaged)} stored files: {damaged[0]}")
    if database.is_sqlite:
        index_copy.restore_sqlite(database, snapshot)
    else:
        migrate.upgrade(database, record.revision)
        with database.write() as session:
            index_copy.restore_postgres(session, snapshot, record.tables)
    migrate.upgrade(database)
    return record


@contextmanager
def _deletions_held(database: Database) -> Iterator[None]:
    """Wait until no process removes deleted files, and let none begin."""
    while True:
        with database.alone("deletions") as is_alone:
            if is_alone:
                yield
                return
        time.sleep(_POLL_SECONDS)


def _remove_former(folder: Path, record: BackupRecord) -> None:
    """Remove former snapshots and files that the current one does not name."""
    for old in folder.glob("index-*"):
        if old.name != record.snapshot:
            shutil.rmtree(old)
    kept = {one.prefix for one in layout.read_stored(folder / record.snapshot / layout.STORED)}
    target = layout.artifacts(folder)
    for parent in ("sessions", "files"):
        for found in list(target.list_prefixes(parent)):
            if found.prefix not in kept:
                target.delete_prefix(found.prefix)
