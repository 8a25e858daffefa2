"""Migrate the database to the newest schema: `python -m storage.migrate`.

The service need not stop for an upgrade. Run the migrations first, then replace the processes one by one:
code of the previous version works on the new schema. Migrations follow these rules:

* A version adds tables, indexes, and columns that are nullable or have a server default. It renames and drops
  nothing that the previous version uses; the next version may.
* A migration that breaks older code names the oldest schema whose code still works: `oldest_code = "0021"`.
  The index stores the highest of these, and processes of older code refuse to start on it.
* `storage.index.migrations.indexes` creates an index on a table that may be large, in a migration of its own.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from actograph.contract.errors import ServiceUnavailable
from actograph.settings import Settings
from storage.index.database import Database
from storage.tables.models import SchemaCompatibilityRow

MIGRATIONS = Path(__file__).parent / "index" / "migrations" / "versions"
#: first schema with a record of the oldest code that works on it
FIRST_COMPATIBLE = "0015"
_POLL_SECONDS = 0.1


def upgrade(database: Database, revision: str = "head", *, versions: Sequence[Path] = (MIGRATIONS,)) -> None:
    """Run the missing migrations, each in its own transaction. Does nothing on a newer, unknown schema.

    Args:
        versions: folders of the migrations.
    """
    with _alone(database), database.engine.connect() as connection:
        config = _config(versions)
        if not _is_known(_current(connection), config):
            return
        connection.rollback()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        _store_oldest_code(connection, config)
        connection.commit()


def downgrade(database: Database, revision: str) -> None:
    """Undo migrations down to `revision` (`base` for all)."""
    with _alone(database), database.engine.connect() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


def current(database: Database) -> str | None:
    """The revision of the database; None before the first migration."""
    with database.engine.connect() as connection:
        return _current(connection)


def head(versions: Sequence[Path] = (MIGRATIONS,)) -> str | None:
    """The newest revision known to this code."""
    return ScriptDirectory.from_config(_config(versions)).get_current_head()


def require_current(database: Database) -> None:
    """Check that this code works on the schema: its own, or a newer compatible one.

    Raises:
        ServiceUnavailable: the schema is older, or too new for this code.
    """
    with database.engine.connect() as connection:
        found, wanted = _current(connection), head()
        if found == wanted:
            return
        if _is_known(found, _config()):
            raise ServiceUnavailable(
                f"the database is at schema {found or 'none'}, this version needs {wanted}; "
                "run: python -m storage.migrate"
            )
        oldest = connection.scalar(sa.select(SchemaCompatibilityRow.oldest_code))
    if oldest is None or wanted is None or wanted < oldest:
        raise ServiceUnavailable(
            f"the database is at schema {found}, which needs code of schema {oldest or found} or newer; this "
            f"version knows {wanted}: install the newer version here too"
        )


@contextmanager
def _alone(database: Database) -> Iterator[None]:
    """Wait until no other process migrates this database.

    Polls, because a statement that waits for a lock would block the creation of indexes.
    """
    while True:
        with database.alone("migrate") as is_alone:
            if is_alone:
                yield
                return
        time.sleep(_POLL_SECONDS)


def _current(connection: sa.Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _is_known(revision: str | None, config: Config) -> bool:
    scripts = ScriptDirectory.from_config(config)
    return revision is None or revision in {script.revision for script in scripts.walk_revisions()}


def _store_oldest_code(connection: sa.Connection, config: Config) -> None:
    """Store the oldest schema whose code works on the current one."""
    reached = _current(connection)
    if reached is None or reached < FIRST_COMPATIBLE:
        return
    scripts = ScriptDirectory.from_config(config).iterate_revisions(reached, "base")
    named = (getattr(script.module, "oldest_code", FIRST_COMPATIBLE) for script in scripts)
    connection.execute(sa.delete(SchemaCompatibilityRow))
    connection.execute(sa.insert(SchemaCompatibilityRow).values(oldest_code=max(named)))


def _config(versions: Sequence[Path] = (MIGRATIONS,)) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS.parent))
    config.set_main_option("version_locations", os.pathsep.join(map(str, versions)))
    config.set_main_option("path_separator", "os")
    return config


def main() -> int:
    database = Database(Settings().effective_database_url)
    upgrade(database)
    sys.stdout.write(f"database at schema {current(database)}\n")
    database.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
