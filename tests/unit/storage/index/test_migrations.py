"""The migrations make exactly the tables that the models describe, and undo them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import event
from sqlalchemy.schema import CreateIndex, CreateTable

from actograph.contract.errors import ServiceUnavailable
from storage import migrate
from storage.index.database import Database
from storage.tables.models import Base


def tables(database: Database) -> set[str]:
    return set(sa.inspect(database.engine).get_table_names())


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


def test_down_to_nothing_and_up_again(database: Database) -> None:
    full = tables(database)
    assert {"jobs", "samples", "sessions", "events"} <= full
    migrate.downgrade(database, "base")
    assert tables(database) <= {"alembic_version"}
    assert migrate.current(database) is None
    migrate.upgrade(database)
    assert tables(database) == full
    assert migrate.current(database) == migrate.head()
    migrate.upgrade(database)


def test_an_old_schema_is_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'new.db'}")
    with pytest.raises(ServiceUnavailable, match=r"python -m storage\.migrate"):
        migrate.require_current(database)
    migrate.upgrade(database)
    migrate.require_current(database)
    database.close()


def test_a_newer_schema_is_refused_only_by_code_that_it_says_it_breaks(database: Database) -> None:
    with database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9000'"))
    try:
        migrate.require_current(database)
        migrate.upgrade(database)  # by a process of the older version, which knows of nothing to do
        assert migrate.current(database) == "9000"
        with database.engine.begin() as connection:
            connection.execute(sa.text("UPDATE schema_compatibility SET oldest_code = '8999'"))
        with pytest.raises(ServiceUnavailable, match="needs code of schema 8999 or newer"):
            migrate.require_current(database)
    finally:
        with database.engine.begin() as connection:
            connection.execute(
                sa.text("UPDATE alembic_version SET version_num = :head"), {"head": migrate.head()}
            )
            connection.execute(sa.text("UPDATE schema_compatibility SET oldest_code = '0015'"))


def test_an_index_that_was_left_half_made_is_made_again(
    new_postgres: Callable[[], str],
) -> None:
    """As after a kill: Postgres keeps an invalid index, which serves nobody and slows every write."""
    database = Database(new_postgres())
    migrate.upgrade(database, "0015")
    with database.engine.begin() as connection:
        connection.execute(sa.text("CREATE INDEX ix_files_created_at_id ON files (created_at, id)"))
        connection.execute(
            sa.text(
                "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_files_created_at_id'::regclass"
            )
        )
    migrate.upgrade(database)
    with database.engine.connect() as connection:
        invalid = connection.execute(
            sa.text("SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid")
        )
        assert invalid.scalars().all() == []
        names = sa.inspect(connection).get_indexes("files")
    assert "ix_files_created_at_id" in {index["name"] for index in names}
    database.close()


def test_indexes_are_made_while_others_write(new_postgres: Callable[[], str]) -> None:
    database = Database(new_postgres())
    migrate.upgrade(database, "0015")
    statements: list[str] = []
    event.listen(
        database.engine, "before_cursor_execute", lambda _c, _u, statement, *_: statements.append(statement)
    )
    migrate.upgrade(database, "0016")
    made = [statement for statement in statements if "CREATE INDEX" in statement]
    assert made
    assert [statement for statement in made if "CONCURRENTLY" not in statement] == []
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


def test_sessions_of_an_old_index_get_the_tags_of_their_jobs(database: Database) -> None:
    migrate.downgrade(database, "base")
    migrate.upgrade(database, "0002")
    job = {"id": "job_1", "kind": "capture", "status": "completed", "model": "m", "spec": "{}"}
    sample = {"id": "smp_1", "job_id": "job_1", "condition": "", "status": "completed", "input": "{}"}
    stored = {"id": "ses_1", "job_id": "job_1", "sample_id": "smp_1", "condition": "", "model": "m"}
    zeros = dict.fromkeys(("position", "sample_index", "epoch", "lease_token", "attempts"), 0)
    ones = dict.fromkeys(("sample_index", "epoch", "prompt_tokens", "generated_tokens", "rows"), 1)
    with database.engine.begin() as connection:
        _insert(connection, "jobs", {**job, "priority": 5, "completed": 1, "failed": 0, "created_at": 1.0})
        _insert(connection, "samples", {**sample, **zeros, "lease_until": 0.0})
        sizes = {"created_at": 2.0, "bytes": 4, "dtype": "F32", "hooks": "{}"}
        _insert(connection, "sessions", {**stored, **ones, **sizes})
        _insert(connection, "job_tags", {"job_id": "job_1", "tag": "night"})
    migrate.upgrade(database)
    with database.engine.connect() as connection:
        tags = connection.execute(sa.text("SELECT session_id, tag, created_at FROM session_tags")).all()
        kept = connection.execute(sa.text("SELECT bytes, owner, expires_at, pinned FROM sessions")).one()
    assert [tuple(row) for row in tags] == [("ses_1", "night", 2.0)]
    assert (kept.bytes, kept.owner, kept.expires_at, bool(kept.pinned)) == (4, None, None, False)
    migrate.downgrade(database, "0002")
    with database.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM sessions")).scalar_one() == 1


def _insert(connection: sa.Connection, table: str, row: dict[str, Any]) -> None:
    columns = ", ".join(f'"{name}"' for name in row)
    places = ", ".join(f":{name}" for name in row)
    connection.execute(sa.text(f"INSERT INTO {table} ({columns}) VALUES ({places})"), row)
