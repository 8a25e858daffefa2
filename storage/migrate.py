"""Bring the database to the newest schema: `python -m storage.migrate`."""

import sys
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from actograph.contract.errors import ServiceUnavailable
from actograph.settings import Settings
from storage.database import Database

#: of Postgres's advisory locks; no other of ours is a number
_LOCK = 0x6163746F


def upgrade(database: Database, revision: str = "head") -> None:
    """Run the migrations that are missing; with none missing, nothing happens."""
    with database.engine.begin() as connection:
        if not database.is_sqlite:
            # processes that start at once: the second one finds nothing missing
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def downgrade(database: Database, revision: str) -> None:
    """Undo migrations down to `revision` (`base` for all)."""
    with database.engine.begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


def current(database: Database) -> str | None:
    """The revision that the database is at; None before the first migration."""
    with database.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def head() -> str | None:
    """The newest revision that this code knows."""
    return ScriptDirectory.from_config(_config()).get_current_head()


def require_current(database: Database) -> None:
    """Raises ServiceUnavailable where the schema is not the one that this code works on."""
    found, wanted = current(database), head()
    if found != wanted:
        raise ServiceUnavailable(
            f"the database is at schema {found or 'none'}, this version needs {wanted}; "
            "run: python -m storage.migrate"
        )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
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
