"""Copies of the index around a migration, for deployments: `python -m storage.index_backup VERB ...`.

due              print the schema that this version would migrate
save FOLDER      the same, and copy the index before
put-back FILE    replace the index by such a copy, if it is at another schema; keep the replaced one beside it
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from actograph.contract.errors import ActographError, NotFound, ServiceUnavailable
from actograph.settings import settings_or_exit
from storage import migrate
from storage.artifacts.local import fsync
from storage.index.database import Database
from storage.tables.models import Base

#: tables that a migration dropped or renamed
FORMER_TABLES: tuple[str, ...] = ()
_LOCK_SECONDS = 30


def due(database: Database) -> str | None:
    """The schema of an index that this version would migrate; None if it is empty or current.

    Raises:
        ServiceUnavailable: this version does not know the schema.
    """
    found = migrate.current(database)
    if found in (None, migrate.head()):
        return None
    migrate.require_known(found)
    return found


def save(database: Database, folder: Path) -> Path:
    """Copy our tables as of one moment to a new file in a folder. Nobody but its owner can read it.

    Raises:
        ServiceUnavailable: `pg_dump` is missing or failed.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    file = folder / f"{migrate.current(database)}-{moment}{'.db' if database.is_sqlite else '.dump'}"
    part = folder / f"{file.name}.incomplete"
    try:
        # a database of Postgres may have tables of others
        copy_index(database, part, *(f"--table={name}" for name in own_tables()))
        part.chmod(0o600)
        part.replace(file)
    finally:
        for left in folder.glob(f"{part.name}*"):
            left.unlink()
    return file


def put_back(database: Database, file: Path) -> dict[str, str] | None:
    """Replace the index by a copy that `save` made. No service may use the index.

    If it fails, the index is as it was.

    Returns:
        `restored`, the file, and `kept`, a copy of the replaced index. None if the index is at the schema of
        the copy: there was no migration.

    Raises:
        NotFound: there is no such file.
        ServiceUnavailable: a program of Postgres is missing or failed, or someone uses the tables.
    """
    if not file.is_file():
        raise NotFound(f"there is no backup {file}")
    if migrate.current(database) == file.name.partition("-")[0]:
        return None
    kept = save(database, file.parent)
    if database.is_sqlite:
        place = Path(str(database.url.database))
        database.close()
        copy_sqlite(file, place)
    else:
        _replace_tables(database, file)
    return {"restored": str(file), "kept": str(kept)}


def _replace_tables(database: Database, file: Path) -> None:
    """Drop our tables and restore those of a dump, in one transaction.

    `pg_restore --clean` would leave tables that the dump has not.
    """
    drop = f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'; DROP TABLE IF EXISTS {', '.join(own_tables())}"
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        script = Path(folder) / "restore.sql"
        run_program("pg_restore", "--no-owner", f"--file={script}", str(file))
        words = ("--quiet", "--no-psqlrc", "--single-transaction", "--set=ON_ERROR_STOP=1")
        run_postgres(database, "psql", *words, f"--command={drop}", f"--file={script}")


def own_tables() -> list[str]:
    """Tables of all revisions."""
    return [*Base.metadata.tables, *FORMER_TABLES, "alembic_version"]


def copy_index(database: Database, file: Path, *words: str) -> None:
    """Copy an index as of one moment, while the service runs. `words` are further options of `pg_dump`.

    Raises:
        ServiceUnavailable: `pg_dump` is missing or failed.
    """
    if database.is_sqlite:
        copy_sqlite(Path(str(database.url.database)), file)
    else:
        run_postgres(database, "pg_dump", "--format=custom", f"--file={file}", *words)


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a database as of one moment, without blocking its writers. The target appears as a whole."""
    part = target.with_name(f"{target.name}.part")
    part.unlink(missing_ok=True)
    with closing(sqlite3.connect(source, timeout=30)) as read, closing(sqlite3.connect(part)) as write:
        read.backup(write)
        write.execute("PRAGMA journal_mode=DELETE")  # one file
    part.chmod(0o600)
    fsync(part)
    for suffix in ("-wal", "-shm"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    part.replace(target)
    fsync(target.parent)


def run_postgres(database: Database, program: str, *words: str) -> None:
    """Run one of Postgres's programs on the index. The password goes through the environment.

    Raises:
        ServiceUnavailable: it is missing or failed.
    """
    full = database.url
    url = sa.URL.create("postgresql", full.username, None, full.host, full.port, full.database, full.query)
    run_program(program, f"--dbname={url.render_as_string()}", *words, password=full.password)


def run_program(program: str, *words: str, password: str | None = None) -> None:
    """Run one of Postgres's programs. Raises ServiceUnavailable if it is missing or failed."""
    if shutil.which(program) is None:
        raise ServiceUnavailable(f"{program} is not installed; it comes with Postgres's client programs")
    variables = os.environ | ({"PGPASSWORD": str(password)} if password else {})
    done = subprocess.run([program, *words], env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServiceUnavailable("; ".join(done.stderr.strip().splitlines()[-2:]) or f"{program} failed")


def main(arguments: list[str]) -> int:
    """Run a verb on the settings' index. Prints its result as JSON."""
    verb, *words = arguments
    database = Database.of(settings_or_exit("python -m storage.index_backup"))
    result: Any
    try:
        if verb == "put-back":
            result = put_back(database, Path(words[0]))
        else:
            schema = due(database)
            file = save(database, Path(words[0])) if verb == "save" and schema else None
            result = schema and {"schema": schema, "file": file and str(file)}
    except ActographError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except DBAPIError as error:
        sys.stderr.write(f"the database does not answer: {' '.join(str(error.orig).split())}\n")
        return 1
    finally:
        database.close()
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
