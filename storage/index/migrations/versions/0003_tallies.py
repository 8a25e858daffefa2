"""Commits add tallies, and `pending` of a job only says whether a worker may claim one of its samples."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tallies",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("outcomes", sa.Text(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("generated_tokens", sa.BigInteger(), nullable=False),
        sa.Column("sessions", sa.Integer(), nullable=False),
        sa.Column("session_rows", sa.BigInteger(), nullable=False),
        sa.Column("session_bytes", sa.BigInteger(), nullable=False),
        sa.Column("busy_seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tallies")),
    )
    with op.batch_alter_table("tallies", schema=None) as batch_op:
        batch_op.create_index("ix_tallies_job_id", ["job_id"], unique=False)
    op.execute("UPDATE jobs SET pending = 1 WHERE pending > 1")
