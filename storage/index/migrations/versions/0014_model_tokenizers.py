"""Tokenizers of loaded models"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "model_tokenizers",
        sa.Column("model", sa.String(1024), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("definition", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("model", name="pk_model_tokenizers"),
    )


def downgrade() -> None:
    op.drop_table("model_tokenizers")
