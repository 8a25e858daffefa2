"""The migration makes exactly the tables that the models describe."""

import re
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.schema import CreateIndex, CreateTable

from actograph.contract.errors import ServiceUnavailable
from storage import index_backup, migrate
from storage.index import visible
from storage.index.database import Database
from storage.tables.models import Base, FileRow


def test_migrated_tables_are_those_of_the_models(database: Database) -> None:
    with database.engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []


def test_migrated_sqlite_is_word_for_word_what_the_models_create(tmp_path: Path) -> None:
    """What autogenerate does not compare: constraints' names, foreign keys' actions, defaults."""
    migrated = Database(f"sqlite:///{tmp_path / 'migrated.db'}")
    created = Database(f"sqlite:///{tmp_path / 'created.db'}")
    migrate.upgrade(migrated)
    with created.engine.begin() as connection:
        for table in Base.metadata.sorted_tables:
            connection.execute(CreateTable(table))
            for index in table.indexes:
                connection.execute(CreateIndex(index))

    def schema(database: Database) -> set[tuple[str, frozenset[str]]]:
        query = sa.text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        with database.engine.connect() as connection:
            rows = connection.execute(query).all()
        # the order of columns and constraints within a table says nothing
        return {
            (name, frozenset(" ".join(part.split()) for part in re.split(r",(?![^(]*\))", body_of(sql))))
            for name, sql in rows
            if name != "alembic_version"
        }

    def body_of(sql: str) -> str:
        return sql[: sql.index("(")] + "," + sql[sql.index("(") + 1 : sql.rindex(")")]

    assert schema(migrated) == schema(created)
    migrated.close()
    created.close()


def test_hidden_rows_keep_their_state(tmp_path: Path) -> None:
    """Until revision 0003 the sign and the size of one number said what a row was."""
    database = Database(f"sqlite:///{tmp_path / 'old.db'}")
    migrate.upgrade(database, "0003")
    later = time.time() + 3600
    doomed = {"visible": None, "unpublished": later, "deleted": 5.0, "removing": -7.0}
    columns = "id, filename, purpose, bytes, sha256, created_at, owner, doomed_at"
    with database.engine.begin() as connection:
        for name, moment in doomed.items():
            insert = sa.text(
                f"INSERT INTO files ({columns}) VALUES (:name, 'f', 'p', 1, '', 1.0, '', :moment)"
            )
            connection.execute(insert, {"name": name, "moment": moment})
    migrate.upgrade(database)
    with database.read() as session, visible.hidden_too(session):
        found = {row.id: (row.visibility, row.removal_due_at) for row in session.scalars(sa.select(FileRow))}
    database.close()
    assert found == {
        "visible": ("visible", None),
        "unpublished": ("unpublished", later),
        "deleted": ("deleted", 5.0),
        "removing": ("removing", 7.0),
    }


def test_backups_know_the_tables_of_all_revisions(tmp_path: Path) -> None:
    """Else a backup from before a migration lacks a table that it drops."""
    database = Database(f"sqlite:///{tmp_path / 'new.db'}")
    found: set[str] = set()
    for script in reversed([*ScriptDirectory(str(migrate.MIGRATIONS)).walk_revisions()]):
        migrate.upgrade(database, script.revision)
        found |= set(sa.inspect(database.engine).get_table_names())
    assert migrate.current(database) == migrate.head()
    assert found <= set(index_backup.own_tables())
    database.close()


def test_an_old_schema_is_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'new.db'}")
    with pytest.raises(ServiceUnavailable, match=r"actograph service migrate"):
        migrate.require_current(database)
    migrate.upgrade(database)
    migrate.require_current(database)
    database.close()


def test_a_schema_of_another_version_is_refused(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'new.db'}")
    migrate.upgrade(database)
    migrate.upgrade(database)
    with database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9000'"))
    for act in (migrate.upgrade, migrate.require_current):
        with pytest.raises(ServiceUnavailable, match="schema 9000, which this version does not know"):
            act(database)
    assert migrate.current(database) == "9000"
    database.close()


def test_the_command_brings_a_new_database_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACTOGRAPH_DATABASE_URL", f"sqlite:///{tmp_path / 'x' / 'new.db'}")
    assert migrate.main() == 0
    assert f"schema {migrate.head()}" in capsys.readouterr().out


def test_an_in_memory_database_is_refused() -> None:
    for url in ("sqlite://", "sqlite:///:memory:"):
        with pytest.raises(ValueError, match="in-memory"):
            Database(url)
