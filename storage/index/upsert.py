"""Writing a row that may be there already, in one statement.

To look first and insert then fails on Postgres where two processes do so at once: neither sees the other's
row, and the second insert meets it. `INSERT ... ON CONFLICT DO UPDATE` does not, and SQLite has the same.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

#: from the values that were to be inserted to those that a row that exists gets
Change = Callable[[Any], Mapping[str, Any]]


class Upsert:
    """Inserts rows of a table, or changes those that have the same key.

    Put together once, since it is the same for every row.
    """

    def __init__(self, table: sa.Table, change: Change) -> None:
        key = [column.name for column in table.primary_key]
        self._statements = {}
        for dialect in (sqlite, postgresql):
            insert = dialect.insert(table)
            self._statements[dialect.dialect.name] = insert.on_conflict_do_update(
                index_elements=key, set_=dict(change(insert.excluded))
            )

    def __call__(self, session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows; those that others write too, in one order, so that Postgres finds no deadlock."""
        if rows:
            connection = session.connection()
            connection.execute(self._statements[connection.dialect.name], list(rows))
