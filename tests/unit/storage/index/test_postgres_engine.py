"""Connections to Postgres: no request fails on a closed one, and reads write nothing."""

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import event

from storage.index.database import PREPARED_AFTER, Database
from storage.tables.models import JobRow

SELECT_ONE = sa.text("SELECT 1")


@pytest.fixture
def postgres(postgres_url: str) -> Database:
    return Database(postgres_url)


def end_connections(database: Database) -> None:
    """As an operator, or a server that is restarted, ends them."""
    other = sa.create_engine(database.url)
    with other.connect() as connection:
        connection.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    other.dispose()


def statements_of(database: Database) -> list[str]:
    """What is sent from now on."""
    sent: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    return sent


def test_a_connection_that_the_server_ended_is_replaced_unseen(postgres: Database) -> None:
    with postgres.read() as one, postgres.read() as other:  # two connections in the pool
        one.execute(SELECT_ONE)
        other.execute(SELECT_ONE)
    end_connections(postgres)
    for transaction in (postgres.read, postgres.write):
        with transaction() as session:
            assert session.execute(SELECT_ONE).scalar_one() == 1
    postgres.close()


def test_what_is_for_reading_refuses_to_write(postgres: Database) -> None:
    with (
        postgres.read() as session,
        pytest.raises(RuntimeError, match="a write in a read-only transaction: UPDATE"),
    ):
        session.execute(sa.update(JobRow).values(priority=1))
    postgres.close()


def test_a_transaction_sees_what_was_committed_while_it_waited(postgres: Database) -> None:
    with postgres.write() as session:
        level = session.execute(sa.text("SHOW transaction_isolation")).scalar_one()
    assert level == "read committed"
    postgres.close()


def test_writes_prepare_statements_and_scan_no_table_whatever_its_size_was(postgres: Database) -> None:
    prepared = sa.text("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%jobs%'")
    by_key = sa.update(JobRow).where(JobRow.id == "job_1").values(priority=1)
    for _ in range(PREPARED_AFTER + 1):
        with postgres.write() as session:
            session.execute(by_key.execution_options(synchronize_session=False))
    with postgres.read() as session:
        for _ in range(PREPARED_AFTER + 1):
            session.execute(sa.select(JobRow).where(JobRow.id == "job_1"))
        assert session.execute(prepared).scalar_one() == 1, "the update, and no read"
        assert session.execute(sa.text("SHOW enable_seqscan")).scalar_one() == "on"
    with postgres.write() as session:
        assert session.execute(sa.text("SHOW enable_seqscan")).scalar_one() == "off"
        plan = session.execute(sa.text("EXPLAIN UPDATE jobs SET priority = 1 WHERE id = 'job_1'"))
        assert "Seq Scan" not in "".join(plan.scalars())
    postgres.close()


def test_nothing_is_prepared_behind_a_pooler(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names a process of its own, of which the server has none."""
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", -1)
    for _ in range(PREPARED_AFTER + 1):
        with postgres.write() as session:
            session.execute(SELECT_ONE)
    with postgres.read() as session:
        found = session.execute(sa.text("SELECT count(*) FROM pg_prepared_statements")).scalar_one()
    assert found == 0
    postgres.close()
