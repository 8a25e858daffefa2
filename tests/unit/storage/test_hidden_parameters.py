"""Errors of the database do not repeat what clients sent."""

import logging

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from storage.index.database import Database
from storage.redaction import RedactingFormatter
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
    values = {"text": SECRET}
    for statement, given in [
        # a row that lacks columns
        ("INSERT INTO jobs (id, kind, spec) VALUES (:text, :text, :text)", values),
        ("SELECT * FROM jobs WHERE nothing = :text", values),
        ("INSERT INTO nothing VALUES (:text)", values),
        (sa.insert(JobRow), {"id": "job_1", "kind": SECRET, "model": None}),
    ]:
        with subtests.test(statement=str(statement)):
            with pytest.raises(DBAPIError) as caught, database.write() as session:
                session.execute(sa.text(statement) if isinstance(statement, str) else statement, given)
            assert SECRET not in str(caught.value).partition("DETAIL:")[0]
            shown = logged(caught.value)
            assert SECRET not in shown
            assert "[SQL:" in shown
