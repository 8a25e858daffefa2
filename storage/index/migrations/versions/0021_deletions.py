"""Deletions that are carried out in the background"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "deletions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("names", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("listed", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_attempt_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deletions")),
    )
    op.create_index("ix_deletions_listed_created_at", "deletions", ["listed", "created_at"])
    op.create_index("ix_deletions_next_attempt_at", "deletions", ["next_attempt_at"])
    op.add_column("jobs", sa.Column("deleted_at", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "deleted_at")
    op.drop_index("ix_deletions_next_attempt_at", table_name="deletions")
    op.drop_index("ix_deletions_listed_created_at", table_name="deletions")
    op.drop_table("deletions")
