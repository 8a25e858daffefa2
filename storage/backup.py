"""Copy index and store to a folder while the service runs, and back: `python -m storage.backup VERB FOLDER`.

FOLDER/index.db or index.dump  the index as of one moment
FOLDER/artifacts               stored sessions and uploads
FOLDER/backup.json             written last

The order is the point. `save` copies the index first: a row is published after its files are stored, and no
file is removed meanwhile, since `save` holds the reaper's lock. `restore` copies the index last. So no row
ever lacks its files, also after an interruption. Files without a row do no harm.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from actograph import __version__
from actograph.contract.errors import ActographError, Conflict, InvalidRequest, NotFound
from actograph.settings import settings_or_exit
from storage import index_backup, migrate
from storage.artifacts.factory import open_store
from storage.artifacts.local import LocalStore
from storage.artifacts.store import ArtifactStore
from storage.index import visible
from storage.index.database import Database
from storage.tables.models import FileRow, SessionRow, Visibility

RECORD = "backup.json"
#: what the index says of stored files: prefix -> name (empty for an upload) -> sha256
Listed = Iterable[tuple[str, dict[str, str]]]


def save(database: Database, store: ArtifactStore, folder: Path) -> dict[str, Any]:
    """Copy index and store to a folder; a later call copies only new sessions and uploads.

    Returns:
        The content of `backup.json`. `damaged` lists what is missing or damaged in the store.

    Raises:
        ServiceUnavailable: the schema is not that of this version, or `pg_dump` is missing or failed.
    """
    migrate.require_current(database)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / RECORD).unlink(missing_ok=True)
    target = LocalStore(folder / "artifacts")
    target.sweep_staging(0.0)
    with _without_reaper(database):
        index_backup.copy_index(database, folder / ("index.db" if database.is_sqlite else "index.dump"))
        found = list(_published(database))
        damaged = [prefix for prefix, files in found if not _copy(store, target, prefix, files)]
    record = {
        "version": __version__, "created_at": time.time(), "index": database.url.get_backend_name(),
        "stored": len(found), "damaged": damaged,
    }  # fmt: skip
    (folder / RECORD).write_text(json.dumps(record))
    return record


def restore(database: Database, store: ArtifactStore, folder: Path) -> dict[str, Any]:
    """Copy a backup to a store and an index without tables. An interrupted call can be repeated.

    Raises:
        NotFound: the folder has no complete backup.
        InvalidRequest: it is one of another kind of database.
        Conflict: the index is not empty.
    """
    if not (folder / RECORD).is_file():
        raise NotFound(f"{folder} has no complete backup: there is no {RECORD}")
    record: dict[str, Any] = json.loads((folder / RECORD).read_text())
    kind = database.url.get_backend_name()
    if record["index"] != kind:
        raise InvalidRequest(f"the backup is of {record['index']}; ACTOGRAPH_DATABASE_URL names {kind}")
    if migrate.current(database) is not None:
        raise Conflict("the index is not empty; restore to another home folder or database")
    source = LocalStore(folder / "artifacts")
    for parent in ("sessions", "files"):
        for one in source.list_prefixes(parent):
            path = source.root / one.prefix
            files = {file.name: "" for file in path.iterdir()} if path.is_dir() else {"": ""}
            _copy(source, store, one.prefix, files)
    if database.is_sqlite:
        place = Path(str(database.url.database))
        database.close()
        index_backup.copy_sqlite(folder / "index.db", place)
    else:
        index_backup.run_postgres(
            database, "pg_restore", "--no-owner", "--single-transaction", str(folder / "index.dump")
        )
    return record


@contextmanager
def _without_reaper(database: Database) -> Iterator[None]:
    while True:
        with database.alone("reaper") as is_alone:
            if is_alone:
                yield
                return
        time.sleep(0.2)


def _published(database: Database) -> Listed:
    """Stored sessions and uploads, also deleted ones: the copied index may still show them.

    Without those whose files the reaper had begun to remove before the copy.
    """
    with database.snapshot() as session, visible.hidden_too(session):
        for row in session.execute(sa.select(SessionRow.id, SessionRow.files).where(_is_kept(SessionRow))):
            if row.files:
                yield f"sessions/{row.id}", {name: file["sha256"] for name, file in row.files.items()}
        for row in session.execute(sa.select(FileRow.id, FileRow.sha256).where(_is_kept(FileRow))):
            if row.sha256:
                yield f"files/{row.id}", {"": row.sha256}


def _is_kept(row: type[SessionRow | FileRow]) -> sa.ColumnElement[bool]:
    return row.visibility != Visibility.REMOVING


def _copy(source: ArtifactStore, target: ArtifactStore, prefix: str, files: dict[str, str]) -> bool:
    """Copy a session or an upload, unless it is there. Returns False if it is missing or damaged.

    Args:
        files: name -> sha256, empty if unknown.
    """
    if target.exists(prefix):
        return True
    try:
        if "" in files:
            _, digest = target.put_stream(prefix, source.stream(prefix))
            if files[""] not in ("", digest):
                target.delete_many({prefix: None})
                return False
            return True
        with target.stage(prefix) as stage:
            for name, expected in files.items():
                found = sha256()
                with stage.create(name) as out:
                    for chunk in source.stream(f"{prefix}/{name}"):
                        found.update(chunk)
                        out.write(chunk)
                if expected not in ("", found.hexdigest()):
                    return False
            stage.commit()
    except NotFound:
        return False
    return True


def main(arguments: list[str]) -> int:
    """Run `save DIR` or `restore DIR` on the settings' index and store. Prints the record as JSON."""
    settings = settings_or_exit("python -m storage.backup")
    work = {"save": save, "restore": restore}[arguments[0]]
    database = Database.of(settings)
    try:
        record = work(database, open_store(settings.effective_artifact_url), Path(arguments[1]))
    except ActographError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        database.close()
    sys.stdout.write(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
