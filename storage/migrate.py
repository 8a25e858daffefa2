"""Bring the database to the schema of this version: `actograph service migrate`; `--check` only compares.

A migration is announced first, and waits until workers of other versions have ended; `--now` does not wait.
"""

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import DBAPIError

from actograph.contract.errors import ServiceUnavailable
from actograph.settings import settings_or_exit
from storage.index import rollout
from storage.index.database import Database

MIGRATIONS = Path(__file__).parent / "index" / "migrations"
log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
#: longest wait for workers: one that hangs does not hold up an upgrade for ever
PATIENCE_SECONDS = 120.0


def upgrade(
    database: Database, revision: str = "head", *, patience_seconds: float = PATIENCE_SECONDS
) -> None:
    """Run the missing migrations up to a revision, each in its own transaction; one process at a time.

    Args:
        patience_seconds: longest wait for workers of other versions to end.

    Raises:
        ServiceUnavailable: the database is at a schema that this version does not know.
    """
    while True:
        with database.alone("migrate") as is_alone:
            if is_alone:
                _upgrade_after_workers(database, revision, patience_seconds)
                return
        time.sleep(_POLL_SECONDS)


def _upgrade_after_workers(database: Database, revision: str, patience_seconds: float) -> None:
    found, target = current(database), head() if revision == "head" else revision
    require_known(found)
    is_due = found is not None and target is not None and found != target
    if is_due:
        assert target is not None
        _announce(database, target, is_done=False)
        deadline, has_said = time.monotonic() + patience_seconds, False
        while time.monotonic() < deadline and (count := _living(database)):
            if not has_said:
                log.warning("the migration to %s waits for %d workers to end", target, count)
            has_said = True
            time.sleep(_POLL_SECONDS)
    _upgrade(database, revision)
    if is_due:
        assert target is not None
        _announce(database, target, is_done=True)


def _announce(database: Database, revision: str, *, is_done: bool) -> None:
    with database.write() as session:
        rollout.announce(session, revision, is_done=is_done)


def _living(database: Database) -> int:
    with database.read() as session:
        return rollout.living_workers(session)


def _upgrade(database: Database, revision: str) -> None:
    with database.engine.connect() as connection:
        require_known(_current(connection))
        connection.rollback()
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.commit()


def current(database: Database) -> str | None:
    """The revision of the database; None before the first migration."""
    with database.engine.connect() as connection:
        return _current(connection)


def head() -> str | None:
    """The newest revision known to this code."""
    return ScriptDirectory.from_config(_config()).get_current_head()


def require_current(database: Database) -> None:
    """Raises ServiceUnavailable if the database is not at the schema of this version."""
    found, wanted = current(database), head()
    if found == wanted:
        return
    require_known(found)
    raise ServiceUnavailable(
        f"the database is at schema {found or 'none'}, this version needs {wanted}; "
        "run: actograph service migrate"
    )


def require_known(revision: str | None) -> None:
    """Raises ServiceUnavailable if this version has no such schema."""
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if revision is not None and revision not in known:
        raise ServiceUnavailable(
            f"the database is at schema {revision}, which this version does not know: install the version "
            "that made it, or name another database in ACTOGRAPH_DATABASE_URL"
        )


def _current(connection: sa.Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    return config


def main(arguments: Sequence[str] = ()) -> int:
    database = Database(settings_or_exit("actograph service migrate").effective_database_url)
    try:
        if "--check" in arguments:
            require_current(database)
        else:
            upgrade(database, patience_seconds=0.0 if "--now" in arguments else PATIENCE_SECONDS)
    except ServiceUnavailable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except DBAPIError as error:  # it cannot be reached, or refuses an option of the URL
        sys.stderr.write(f"the database does not answer: {' '.join(str(error.orig).split())}\n")
        return 1
    sys.stdout.write(f"database at schema {current(database)}\n")
    database.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
