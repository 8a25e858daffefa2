"""Workers are told apart by PID namespace and start time."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("workers", schema=None) as batch_op:
        batch_op.add_column(sa.Column("pid_namespace", sa.String(length=255), nullable=True))
        batch_op.add_column(sa.Column("process_started", sa.BigInteger(), nullable=True))
