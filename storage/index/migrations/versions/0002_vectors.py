"""Stored vectors for interventions"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "vectors",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("hook", sa.String(length=256), nullable=False),
        sa.Column("model", sa.String(length=1024), nullable=True),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("details", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vectors")),
    )
    with op.batch_alter_table("vectors", schema=None) as batch_op:
        batch_op.create_index("ix_vectors_created_at_id", ["created_at", "id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("vectors", schema=None) as batch_op:
        batch_op.drop_index("ix_vectors_created_at_id")

    op.drop_table("vectors")
