"""Write a row that may exist, in one statement.

A SELECT before the INSERT fails on Postgres if two processes do so at once: neither sees the other's row, and
the second INSERT meets it. `INSERT ... ON CONFLICT DO UPDATE` works on Postgres and SQLite.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from storage.tables.models import Base


class Upsert:
    """Inserts rows of a table; rows with the same primary key are changed instead.

    The statements are built once, since they are the same for all rows.
    """

    def __init__(self, row: type[Base], *replaced: str, added: Sequence[str] = ()) -> None:
        """`replaced`: columns that take the new value; `added`: columns that grow by it."""
        table = cast(sa.Table, row.__table__)
        key = [column.name for column in table.primary_key]
        self._statements = {}
        for dialect in (sqlite, postgresql):
            insert = dialect.insert(table)
            change = {name: insert.excluded[name] for name in replaced}
            change |= {name: table.c[name] + insert.excluded[name] for name in added}
            statement = insert.on_conflict_do_update(index_elements=key, set_=change)
            self._statements[dialect.dialect.name] = statement

    def __call__(self, session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows. Writers of the same rows must use one order, or Postgres finds a deadlock."""
        if rows:
            connection = session.connection()
            connection.execute(self._statements[connection.dialect.name], list(rows))
