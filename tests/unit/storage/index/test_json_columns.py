"""JSON columns keep what Python's `json` writes."""

import math
from typing import Any

import sqlalchemy as sa

from storage.index.database import Database


def read(database: Database, text: str) -> Any:
    """The value of a JSON column that holds a text."""
    statement = sa.text("SELECT :text AS value").bindparams(text=text).columns(value=sa.JSON)
    with database.read() as session:
        return session.scalar(statement)


def test_unusual_numbers_and_characters(sqlite: Database) -> None:
    for text, expected in (
        ('{"a": "\\ud800", "b": [1, 2.5e300, 123456789012345678901234567890]}',
         {"a": "\ud800", "b": [1, 2.5e300, 123456789012345678901234567890]}),
        ('{"a": 0.1, "a": 0.30000000000000004}', {"a": 0.30000000000000004}),
        ("null", None),
    ):  # fmt: skip
        assert read(sqlite, text) == expected
    assert math.isnan(read(sqlite, "NaN"))
