"""The identity of the model that jobs are pinned to, sessions were recorded with and workers hold"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("pinned", sa.JSON(), nullable=True))
    for table in ("jobs", "sessions", "workers"):
        op.add_column(table, sa.Column("identity_sha256", sa.String(64), nullable=True))


def downgrade() -> None:
    for table in ("workers", "sessions", "jobs"):
        op.drop_column(table, "identity_sha256")
    op.drop_column("jobs", "pinned")
