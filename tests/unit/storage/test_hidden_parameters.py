"""Errors of the database do not repeat what clients sent."""

import logging

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from actograph.redaction import RedactingFormatter
from storage.index.database import Database
from storage.tables.models import JobRow

SECRET = "a prompt that nobody else shall read"


def logged(error: BaseException) -> str:
    """The error as the log has it, in the message and with its traceback."""
    formatter = RedactingFormatter("%(message)s")
    record = logging.LogRecord("api", logging.ERROR, __file__, 1, "%s", (error,), None)
    with_trace = logging.LogRecord(
        "api", logging.ERROR, __file__, 1, "failed", (), (type(error), error, error.__traceback__)
    )
    return formatter.format(record) + formatter.format(with_trace)


def test_errors_show_no_parameters(database: Database, subtests: pytest.Subtests) -> None:
    for statement in [
        "INSERT INTO jobs (id, kind, spec) VALUES (:text, :text, :text)",  # a row that lacks columns
        "SELECT * FROM jobs WHERE nothing = :text",
        "INSERT INTO nothing VALUES (:text)",
    ]:
        with subtests.test(statement=statement):
            with pytest.raises(DBAPIError) as caught, database.write() as session:
                session.execute(sa.text(statement), {"text": SECRET})
            assert SECRET not in str(caught.value).partition("DETAIL:")[0]
            shown = logged(caught.value)
            assert SECRET not in shown
            assert "[SQL:" in shown


def test_errors_of_the_models_show_no_parameters(database: Database) -> None:
    with pytest.raises(DBAPIError) as caught, database.write() as session:
        session.execute(sa.insert(JobRow).values(id="job_1", kind=SECRET, model=None))
    assert SECRET not in logged(caught.value)
