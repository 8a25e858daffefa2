"""A session of a replay names the session that it replays."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("source_session", sa.String(length=64), nullable=True))
    has_source = sa.text("source_session IS NOT NULL")
    op.create_index(
        "ix_sessions_source_session",
        "sessions",
        ["source_session", "created_at", "id"],
        unique=False,
        sqlite_where=has_source,
        postgresql_where=has_source,
    )
