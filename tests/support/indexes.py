"""SQLite indexes at the newest schema: migrated once in a process, then copied."""

import tempfile
from functools import cache
from pathlib import Path

from storage import migrate
from storage.index.database import Database


def create_index(database: Database) -> None:
    """Do the work of `migrate.upgrade` for a SQLite file that does not exist yet."""
    assert database.url.database is not None
    write_index(Path(database.url.database))


def write_index(path: Path) -> None:
    """Write the file of an empty index."""
    assert not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_empty_index())


@cache
def _empty_index() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        database = Database(f"sqlite:///{path}")
        migrate.upgrade(database)
        with database.engine.connect() as connection:
            connection.exec_driver_sql("ROLLBACK")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()
        return path.read_bytes()
