"""Digests of the chunks of uploaded files"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("files", sa.Column("chunks", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("files", "chunks")
