"""Which errors mean that the database is away, on a real server that is stopped, started and misused."""

import signal

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from storage.index.database import Database, is_away
from tests.support.servers.postgres import PostgresServer


def failure(database: Database, statement: str = "SELECT 1") -> DBAPIError:
    with pytest.raises(DBAPIError) as raised, database.read() as session:
        session.execute(sa.text(statement))
    return raised.value


def test_a_server_that_is_stopped_is_away_and_a_wrong_statement_or_password_is_not(
    own_postgres: PostgresServer,
) -> None:
    server = own_postgres
    database = Database(server.url)
    assert not is_away(failure(database, "SELECT no_such_column"))
    wrong = Database(database.url.set(password="wrong").render_as_string(hide_password=False))
    assert not is_away(failure(wrong))
    assert not is_away(failure(Database(server.database_url("no_such_database"))))
    with pytest.raises(DBAPIError) as raised, database.read() as session:
        session.execute(sa.text("SELECT 1"))
        server.stop(signal.SIGINT)
        session.execute(sa.text("SELECT 1"))
    assert is_away(raised.value)
    assert is_away(failure(database))
    server.start()
    with database.read() as session:
        assert session.execute(sa.text("SELECT 1")).scalar_one() == 1
    database.close()


def test_a_transaction_is_made_again_once_the_server_is_back(own_postgres: PostgresServer) -> None:
    server = own_postgres
    database = Database(server.url)
    with database.write() as session:
        session.execute(sa.text("CREATE TABLE notes (word text)"))
    tries = 0

    def note(session: Session) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            server.start()
        session.execute(sa.text("INSERT INTO notes VALUES ('one')"))
        if tries == 1:
            server.kill()  # before the commit

    database.insist(note)
    assert tries >= 2
    with database.read() as session:
        assert session.execute(sa.text("SELECT count(*) FROM notes")).scalar_one() == 1
    with pytest.raises(DBAPIError):
        database.insist(lambda session: session.execute(sa.text("SELECT no_such_column")))
    server.stop()
    with pytest.raises(DBAPIError):
        database.insist(lambda session: session.execute(sa.text("SELECT 1")), give_up=lambda: True)
    database.close()
