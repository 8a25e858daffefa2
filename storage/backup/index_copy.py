"""Copies of the index as of one moment: SQLite by its backup API, Postgres by COPY in one transaction."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from storage.artifacts.local import fsync
from storage.backup.layout import SQLITE_INDEX, Stored, StoredFile
from storage.index.database import Database
from storage.tables.base import Base
from storage.tables.models import ArtifactRow, FileRow

_FETCH = 5000
#: tables whose rows an empty index lacks
_FILLED = ("jobs", "sessions", "files", "vectors", "batches", "api_keys")


def is_empty(database: Database) -> bool:
    """Whether an index has no jobs, sessions, files, vectors, batches and keys, or no tables yet."""
    with database.read() as session:
        there = set(sa.inspect(session.connection()).get_table_names())
        return all(
            session.execute(sa.select(sa.literal(1)).select_from(sa.table(name)).limit(1)).first() is None
            for name in _FILLED
            if name in there
        )


def save_sqlite(database: Database, folder: Path) -> None:
    """Copy a SQLite index to `index.db`, without blocking writers."""
    path = folder / SQLITE_INDEX
    _copy_sqlite(Path(str(database.url.database)), path)


def restore_sqlite(database: Database, folder: Path) -> None:
    """Replace an empty SQLite index, which no process may have open, by that of a backup."""
    target = Path(str(database.url.database))
    database.close()
    aside = target.with_name(f"{target.name}.restored")
    aside.unlink(missing_ok=True)
    _copy_sqlite(folder / SQLITE_INDEX, aside)
    for suffix in ("-wal", "-shm"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    aside.replace(target)
    fsync(target.parent)


def _copy_sqlite(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source, timeout=30)) as read, closing(sqlite3.connect(target)) as write:
        read.backup(write)  # in one step: one moment
        write.execute("PRAGMA journal_mode=DELETE")  # one file
    target.chmod(0o600)
    fsync(target)


def stored_of_sqlite(folder: Path) -> Iterator[Stored]:
    """Stored files that a copied SQLite index refers to."""
    copy = sa.create_engine(f"sqlite:///{folder / SQLITE_INDEX}")
    try:
        with Session(copy) as session:
            yield from stored_files(session)
    finally:
        copy.dispose()


def stored_files(session: Session) -> Iterator[Stored]:
    """Stored files that the index of a session refers to."""
    columns = (ArtifactRow.session_id, ArtifactRow.name, ArtifactRow.bytes, ArtifactRow.sha256)
    listed = session.execute(
        sa.select(*columns)
        .order_by(ArtifactRow.session_id, ArtifactRow.name)
        .execution_options(yield_per=_FETCH)
    )
    for session_id, rows in groupby(listed, key=lambda row: row[0]):
        yield Stored(f"sessions/{session_id}", [StoredFile(*row[1:]) for row in rows])
    uploads = sa.select(FileRow.id, FileRow.bytes, FileRow.sha256).order_by(FileRow.id)
    for file_id, size, digest in session.execute(uploads.execution_options(yield_per=_FETCH)):
        yield Stored(f"files/{file_id}", [StoredFile("", size, digest)])


def save_postgres(session: Session, folder: Path) -> dict[str, list[str]]:
    """Copy all tables to `<table>.copy`, in the snapshot of a transaction. Returns their columns."""
    tables = {table.name: [column.name for column in table.columns] for table in Base.metadata.sorted_tables}
    with _cursor(session) as cursor:
        for name, columns in tables.items():
            path = folder / f"{name}.copy"
            with path.open("wb") as file, cursor.copy(_copy(name, columns, "TO STDOUT")) as copy:
                for data in copy:
                    file.write(data)
            path.chmod(0o600)
            fsync(path)
    return tables


def restore_postgres(session: Session, folder: Path, tables: dict[str, list[str]]) -> None:
    """Fill an empty index of the same revision, in the caller's transaction."""
    from psycopg import sql

    with _cursor(session) as cursor:
        for name in reversed(tables):  # rows of migrations
            cursor.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)))
        for name, columns in tables.items():
            statement = _copy(name, columns, "FROM STDIN")
            with (folder / f"{name}.copy").open("rb") as file, cursor.copy(statement) as copy:
                while data := file.read(1 << 20):
                    copy.write(data)
        cursor.execute("SELECT setval(pg_get_serial_sequence('events', 'id'), max(id)) FROM events")


def _copy(name: str, columns: list[str], direction: str) -> Any:
    from psycopg import sql

    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL("COPY {} ({}) " + direction).format(sql.Identifier(name), listed)


def _cursor(session: Session) -> Any:
    """A cursor of psycopg in the session's transaction."""
    driver: Any = session.connection().connection.driver_connection
    return driver.cursor()
