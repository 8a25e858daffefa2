"""Insert or change many rows, each with its own values, in one statement.

On Postgres the rows are one parameter, `json_to_recordset`: their number changes neither the statement nor
the round trips. SQLite's driver repeats one statement for all rows.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session

from storage.index.ids import among_given, among_values
from storage.tables.models import Base

Rows = Sequence[Mapping[str, Any]]


class BulkInsert:
    """Inserts rows with these columns. The statements are built once."""

    def __init__(self, row: type[Base], *columns: str) -> None:
        table, self._columns = cast(sa.Table, row.__table__), columns
        self._each = sa.insert(table)
        given = _recordset(table, columns)
        self._at_once = sa.insert(table).from_select(
            list(columns), sa.select(*(given.c[name] for name in columns)), include_defaults=False
        )

    def __call__(self, session: Session, rows: Rows) -> None:
        """Insert rows; each mapping has all columns."""
        if rows:
            connection = session.connection()
            if connection.dialect.name == "postgresql":
                connection.execute(self._at_once, {"given": json.dumps(rows)})
            else:
                connection.execute(self._each, list(rows))


class BulkUpdate:
    """Sets columns of the rows that also meet a condition. The statements are built once."""

    def __init__(self, row: type[Base], *columns: str, where: sa.ColumnElement[bool] | None = None) -> None:
        table = cast(sa.Table, row.__table__)
        key = next(iter(table.primary_key))
        self._key, self._columns = key.name, columns
        is_meant = sa.true() if where is None else where
        self._meant = sa.select(key).where(among_given("sqlite", key), is_meant)
        by_key = sa.update(table).where(key == sa.bindparam("_key"))
        self._each = by_key.values({name: sa.bindparam(name) for name in columns})
        given = _recordset(table, (key.name, *columns))
        matching = sa.update(table).where(key == given.c[key.name], is_meant)
        self._at_once = matching.values({name: given.c[name] for name in columns}).returning(key)

    def __call__(self, session: Session, rows: Rows, **values: Any) -> set[str]:
        """Change rows; each mapping has the primary key and all columns. Returns the keys of changed rows.

        Args:
            values: parameters of the condition.
        """
        if not rows:
            return set()
        connection = session.connection()
        if connection.dialect.name == "postgresql":
            return set(connection.scalars(self._at_once, {"given": json.dumps(rows)} | values))
        # nobody else writes meanwhile, so these stay as they are
        given = among_values("sqlite", (row[self._key] for row in rows))
        meant = set(connection.scalars(self._meant, given | values))
        chosen = [row for row in rows if row[self._key] in meant]
        if chosen:
            each = [{name: row[name] for name in self._columns} | {"_key": row[self._key]} for row in chosen]
            connection.execute(self._each, each)
        return meant


def _recordset(table: sa.Table, columns: Sequence[str]) -> Any:
    given = sa.func.json_to_recordset(sa.cast(sa.bindparam("given", type_=sa.Text), postgresql.JSON))
    named = given.table_valued(*(sa.column(name, table.c[name].type) for name in columns))
    return named.render_derived(with_types=True)
