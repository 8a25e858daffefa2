"""Create and drop indexes while the service runs.

On Postgres an index is created with CONCURRENTLY, which neither blocks writers nor runs in a transaction. An
attempt that broke off leaves an invalid index; the next one removes it and begins again. So such a migration
may be run again, and does nothing else.

https://www.postgresql.org/docs/current/sql-createindex.html#SQL-CREATEINDEX-CONCURRENTLY
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

_IS_INVALID = sa.text(
    "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(:name) AND NOT indisvalid"
)  # fmt: skip


def create(name: str, table: str, columns: Sequence[str], *, where: str | None = None) -> None:
    """Create an index unless it exists; `where` makes it partial."""
    condition = sa.text(where) if where is not None else None
    if not _is_postgres():
        op.create_index(name, table, list(columns), sqlite_where=condition, if_not_exists=True)
        return
    with op.get_context().autocommit_block():
        if op.get_bind().execute(_IS_INVALID, {"name": name}).first() is not None:
            op.drop_index(name, table_name=table, postgresql_concurrently=True)
        op.create_index(
            name,
            table,
            list(columns),
            postgresql_where=condition,
            postgresql_concurrently=True,
            if_not_exists=True,
        )


def drop(name: str, table: str) -> None:
    """Drop an index if it exists."""
    if not _is_postgres():
        op.drop_index(name, table_name=table, if_exists=True)
        return
    with op.get_context().autocommit_block():
        op.drop_index(name, table_name=table, postgresql_concurrently=True, if_exists=True)


def _is_postgres() -> bool:
    return op.get_context().dialect.name == "postgresql"
