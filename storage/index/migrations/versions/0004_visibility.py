"""Rows that readers do not see have a visibility and the time of their removal, in place of a signed time."""

import time

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("jobs", "sessions", "files"):
        op.add_column(
            table, sa.Column("visibility", sa.String(length=16), server_default="visible", nullable=False)
        )
        op.add_column(table, sa.Column("removal_due_at", sa.Double(), nullable=True))
        rows = sa.table(
            table,
            sa.column("visibility", sa.String),
            sa.column("removal_due_at", sa.Double),
            sa.column("doomed_at", sa.Double),
        )
        # negative: the next attempt to remove files; in the future: a row in the making
        of_old = sa.case(
            (rows.c.doomed_at < 0, "removing"),
            (rows.c.doomed_at > time.time(), "unpublished"),
            else_="deleted",
        )
        hidden = sa.update(rows).where(rows.c.doomed_at.is_not(None))
        op.execute(hidden.values(visibility=of_old, removal_due_at=sa.func.abs(rows.c.doomed_at)))
        op.drop_index(f"ix_{table}_doomed_at", table)
        op.drop_column(table, "doomed_at")
        is_hidden = sa.text("removal_due_at IS NOT NULL")
        op.create_index(
            f"ix_{table}_removal_due_at",
            table,
            ["removal_due_at"],
            unique=False,
            sqlite_where=is_hidden,
            postgresql_where=is_hidden,
        )
