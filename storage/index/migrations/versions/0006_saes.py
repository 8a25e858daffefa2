"""SAEs have a table; their weights are files."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "saes",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("hook", sa.String(length=256), nullable=False),
        sa.Column("model", sa.String(length=1024), nullable=True),
        sa.Column("config", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("file_id", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("details", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_saes")),
    )
    op.create_index("ix_saes_created_at_id", "saes", ["created_at", "id"], unique=False)
    op.create_index("ix_saes_owner_created_at_id", "saes", ["owner", "created_at", "id"], unique=False)
    op.create_index("ix_saes_file_id", "saes", ["file_id"], unique=False)
