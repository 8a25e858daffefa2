"""Owners, expiry, pins and tags of sessions, and an index for each filter"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

FILTERS = ("model", "condition", "sample_index", "correct", "owner", "pinned")


def upgrade() -> None:
    # columns are added in place: on SQLite a table made anew would take the rows that refer to it along
    for table in ("jobs", "sessions", "files"):
        op.add_column(table, sa.Column("owner", sa.String(length=64), nullable=True))
    op.add_column("sessions", sa.Column("expires_at", sa.Double(), nullable=True))
    op.add_column("sessions", sa.Column("pinned", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.drop_index("ix_sessions_model", "sessions")
    for column in FILTERS:
        op.create_index(f"ix_sessions_{column}_created_at_id", "sessions", [column, "created_at", "id"])
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])
    op.create_index("ix_sessions_owner_bytes_rows", "sessions", ["owner", "bytes", "rows"])
    op.create_table(
        "session_tags",
        sa.Column("session_id", sa.String(length=64), nullable=False),
        sa.Column("tag", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
            name=op.f("fk_session_tags_session_id_sessions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", "tag", name=op.f("pk_session_tags")),
    )
    op.create_index(
        "ix_session_tags_tag_created_at_session_id", "session_tags", ["tag", "created_at", "session_id"]
    )
    op.execute(
        "INSERT INTO session_tags (session_id, tag, created_at) "
        "SELECT sessions.id, job_tags.tag, sessions.created_at "
        "FROM sessions JOIN job_tags ON job_tags.job_id = sessions.job_id"
    )


def downgrade() -> None:
    op.drop_index("ix_session_tags_tag_created_at_session_id", "session_tags")
    op.drop_table("session_tags")
    op.drop_index("ix_sessions_owner_bytes_rows", "sessions")
    op.drop_index("ix_sessions_expires_at", "sessions")
    for column in FILTERS:
        op.drop_index(f"ix_sessions_{column}_created_at_id", "sessions")
    op.create_index("ix_sessions_model", "sessions", ["model"])
    for column in ("pinned", "expires_at"):
        op.drop_column("sessions", column)
    for table in ("files", "sessions", "jobs"):
        op.drop_column(table, "owner")
